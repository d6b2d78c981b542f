"""Files beneath a root, whatever their names are and whatever changes meanwhile.

Every name that comes from a model, a configuration or a client passes through here. ``opening.open_beneath`` opens it;
``unchanged.unchanged`` is for what a library can only open by its path.
"""
