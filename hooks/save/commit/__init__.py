"""The requests that end a save: the manifest, then the marker.

`own_manifest` queues them, and commits for one rank. `publish` commits for several; `peer_manifests` follows the others' manifests.
"""
