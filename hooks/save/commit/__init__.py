"""The requests that end a save: the manifest, then the marker.

`publish` commits for one rank or for several. `peer_manifests` follows the other ranks' manifests.
"""
