"""The text that the chat model learns: a village, what is true in it, conversations about it, and stories."""
