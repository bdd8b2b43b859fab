"""Text to tokens and back: tokenizers, chat templates, and the text of a stream of tokens."""

from paceline.tokenization.load import load_tokenizer
from paceline.tokenization.tokenizer import Tokenizer

__all__ = ["Tokenizer", "load_tokenizer"]
