"""What a model is called in the server: its name, and with namespacing also the repository that it comes from."""

__all__ = ["ModelId"]


class ModelId(str):
    """A model's name, or ``NAMESPACE::NAME``: a text that knows its parts.

    The namespace is the URL of the repository; it is empty without namespacing, and for a model that lies in none.
    """

    __slots__ = ("name", "namespace")

    name: str
    namespace: str

    def __new__(cls, name: str, namespace: str = "") -> "ModelId":
        self = super().__new__(cls, f"{namespace}::{name}" if namespace else name)
        self.name = name
        self.namespace = namespace
        return self

    @classmethod
    def of(cls, text: str) -> "ModelId":
        """``text`` itself if it is one, else the model of that name without a namespace."""
        return text if isinstance(text, ModelId) else cls(text)
