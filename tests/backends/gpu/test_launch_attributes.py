"""Clusters of thread blocks at a launch: what is refused, and what the driver is asked for. No GPU is needed."""

from __future__ import annotations

import pytest

from opwright.backends.gpu.launch_attributes import check_cluster, check_launched_cluster, launch_with_attributes
from opwright.errors import LaunchError


def test_a_grid_is_a_whole_number_of_clusters() -> None:
    check_cluster("k", (2, 2, 1), (4, 6, 5))
    with pytest.raises(LaunchError, match=r"must be a whole number of clusters of \(2, 4, 1\) blocks, got \(4, 6, 5\)"):
        check_cluster("k", (2, 4, 1), (4, 6, 5))


@pytest.mark.parametrize("cluster", [(17, 1, 1), (4, 4, 2), (0, 1, 1)])
def test_a_cluster_has_one_to_sixteen_blocks(cluster: tuple[int, int, int]) -> None:
    with pytest.raises(LaunchError, match="the cluster must have 1 to 16 blocks, got"):
        check_cluster("k", cluster, (64, 64, 64))


def test_a_launch_and_its_kernel_name_the_same_cluster() -> None:
    check_launched_cluster("k", (1, 1, 1), (1, 1, 1), (3, 1, 1), 0)
    with pytest.raises(LaunchError, match=r"clusters of \(4, 1, 1\) blocks, and its __cluster_dims__ are \(2, 1, 1\)"):
        check_launched_cluster("k", (4, 1, 1), (2, 1, 1), (8, 1, 1), 0)
    with pytest.raises(LaunchError, match="must be a whole number of clusters"):
        check_launched_cluster("k", None, (2, 1, 1), (3, 1, 1), 0)


def test_the_driver_gets_the_cluster_as_an_attribute() -> None:
    pytest.importorskip("cuda.bindings", reason="there are no bindings of CUDA's driver")
    config = launch_with_attributes((8, 6, 4), (32, 2, 1), 512, 7, cluster=(4, 3, 2), cooperative=False)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (8, 6, 4)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (32, 2, 1)
    dim = config.attrs[0].value.clusterDim
    assert (dim.x, dim.y, dim.z, config.numAttrs, config.sharedMemBytes) == (4, 3, 2, 1, 512)


def test_the_driver_gets_a_cooperative_launch_as_an_attribute() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="there are no bindings of CUDA's driver")
    config = launch_with_attributes((8, 6, 4), (32, 2, 1), 512, 7, cluster=None, cooperative=True)
    assert config.numAttrs == 1
    assert config.attrs[0].id == driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    assert config.attrs[0].value.cooperative == 1
