"""Finds a CUDA toolkit on this machine, if there is one."""

_BUILD = """\
load("@ballast//third_party/cuda:setting.bzl", "cuda_found")

package(default_visibility = ["//visibility:public"])

exports_files(["defs.bzl"])

cuda_found(
    name = "found",
    build_setting_default = {found},
)

config_setting(
    name = "available",
    flag_values = {{":found": "True"}},
)
"""

def _cuda_detect_impl(ctx):
    root = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    wish = ctx.os.environ.get("BALLAST_CUDA", "detect")
    if wish not in ["detect", "demand", "forbid"]:
        fail("BALLAST_CUDA is %r, not detect, demand or forbid" % wish)
    found = wish != "forbid" and ctx.path(root + "/bin/nvcc").exists
    if wish == "demand" and not found:
        fail(("--config=cuda demands a CUDA toolkit, and there is no " +
              "%s/bin/nvcc; set CUDA_HOME or leave the option out") % root)
    ctx.file("defs.bzl", "CUDA_FOUND = %s\nCUDA_ROOT = %r\n" % (found, root))
    ctx.file("BUILD", _BUILD.format(found = found))

cuda_detect = repository_rule(
    implementation = _cuda_detect_impl,
    environ = ["BALLAST_CUDA", "CUDA_HOME"],
    doc = """Defines CUDA_FOUND and CUDA_ROOT in @cuda//:defs.bzl and the
    condition @cuda//:available for select().""",
    local = True,
)
