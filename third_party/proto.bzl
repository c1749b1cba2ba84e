"""C++ from .proto files with the distribution's protoc."""

def cc_grpc_proto(name, src, deps = [], grpc = False, visibility = None):
    """A cc_library `name` with the messages (and services) of `src`.

    Args:
      name: of the library.
      src: one .proto file of this package.
      deps: further cc_grpc_proto libraries that `src` imports.
      grpc: also generate the services.
      visibility: as usual.
    """
    stem = native.package_name() + "/" + src[:-len(".proto")]
    base = src[:-len(".proto")]
    outs = [base + ".pb.h", base + ".pb.cc"]
    plugin = ""
    if grpc:
        outs += [base + ".grpc.pb.h", base + ".grpc.pb.cc"]
        plugin = ("--plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin) " +
                  "--grpc_out=$(GENDIR) ")
    native.genrule(
        name = name + "_gen",
        srcs = native.glob(["*.proto"]),
        outs = outs,
        cmd = "protoc -I. --cpp_out=$(GENDIR) " + plugin + stem + ".proto",
    )
    native.cc_library(
        name = name,
        srcs = [o for o in outs if o.endswith(".cc")],
        hdrs = [o for o in outs if o.endswith(".h")],
        copts = ["-w"],
        visibility = visibility,
        deps = deps + ["@system//:grpc" if grpc else "@system//:protobuf"],
    )
