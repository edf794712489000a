"""All that touches transformers' Qwen3-VL."""
