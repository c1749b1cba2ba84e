"""The build setting behind @cuda//:available."""

def _cuda_found_impl(_ctx):
    return []

cuda_found = rule(
    implementation = _cuda_found_impl,
    build_setting = config.bool(flag = False),
    doc = "A constant: whether third_party/cuda/detect.bzl found a toolkit.",
)
