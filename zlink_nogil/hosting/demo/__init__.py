"""The main job: index a tree of Python sources with a mesh of server processes, and check the answer."""
