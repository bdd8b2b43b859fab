// A request as a command line that anybody can repeat.

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** The same request with curl. A key is named, never shown. */
export function asCurl(url, body, withKey) {
  const lines = [`curl ${quoted(url)}`, "-H 'Content-Type: application/json'"];
  if (withKey) lines.push('-H "Authorization: Bearer $PACELINE_API_KEY"');
  lines.push(`-d ${quoted(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}
