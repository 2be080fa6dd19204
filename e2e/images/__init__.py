"""LoraFleet's container images, built without a container engine (buildah) and brought into the cluster.

Called through `python3 -m e2e.cluster images`; standard library only, as e2e/cluster. The Dockerfiles lie on their
shelves and build with Docker, too.
"""
