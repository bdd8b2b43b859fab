#include "kernels.hpp"

namespace paceline {

Status check(const RotateArgs &a) {
    for (int64_t row = 0; row < a.rows; ++row) {
        if (a.positions[row] < 0 || a.positions[row] >= a.table_rows) return BAD_POSITION;
        if (a.slots[row] < 0 || a.slots[row] >= a.num_slots) return BAD_SLOT;
    }
    return OK;
}

Status check(const AttentionArgs &a) {
    if (a.query_starts[0] < 0 || a.query_starts[a.sequences] > a.rows) return BAD_QUERY_STARTS;
    for (int64_t s = 0; s < a.sequences; ++s) {
        const int64_t rows = int64_t{a.query_starts[s + 1]} - a.query_starts[s], context = a.context_lens[s];
        if (rows < 0) return BAD_QUERY_STARTS;
        if (rows == 0) continue;
        if (context < rows || context > a.table_width * a.block_size) return BAD_CONTEXT_LENGTH;
        const int32_t *table = a.block_tables + s * a.table_stride;
        const int64_t hidden = a.window ? context - rows + 1 - a.window : 0;  // keys before the first row's window
        for (int64_t block = hidden > 0 ? hidden / a.block_size : 0; block * a.block_size < context; ++block)
            if (table[block] < 0 || table[block] >= a.num_blocks) return BAD_BLOCK;
    }
    return OK;
}

Status check(const UnpackArgs &a) {
    for (int64_t i = 0; i < a.count; ++i)
        if (a.rows[i] < 0 || a.rows[i] >= a.outputs) return BAD_ROW;
    return OK;
}

}  // namespace paceline
