"""The end of a save: the state is looked at once more, then the manifest, then the marker.

`committer` is one rank's commit, `publish` its requests, `peer_manifests` what it sees of the other ranks'.
"""
