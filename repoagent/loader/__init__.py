"""Finding agents, planning chains, running them, and handing the result over. ``loader.Loader`` is the way in."""
