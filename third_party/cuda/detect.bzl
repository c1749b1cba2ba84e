"""Finds a CUDA toolkit on this machine, if there is one."""

def _cuda_detect_impl(ctx):
    root = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = ctx.path(root + "/bin/nvcc").exists
    ctx.file("defs.bzl", "CUDA_FOUND = %s\nCUDA_ROOT = %r\n" % (found, root))
    ctx.file("BUILD", """\
package(default_visibility = ["//visibility:public"])
exports_files(["defs.bzl"])
""")

cuda_detect = repository_rule(
    implementation = _cuda_detect_impl,
    environ = ["CUDA_HOME"],
    doc = "Defines CUDA_FOUND and CUDA_ROOT in @cuda//:defs.bzl.",
    local = True,
)
