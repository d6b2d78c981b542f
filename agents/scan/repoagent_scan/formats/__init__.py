"""What a file is, told by its content.

``detection.py`` decides. The other modules each know one format.
"""
