"""The page at ``/ui``: static files that ask the server's own API, and how they are served."""
