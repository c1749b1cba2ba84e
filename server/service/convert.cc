#include "server/service/convert.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"

namespace ballast::service {
namespace {

absl::Status Missing(const char* field) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is missing"));
}

absl::StatusOr<kernels::DType> FromProto(v1::DType dtype,
                                         const std::string& tensor) {
  switch (dtype) {
    case v1::DTYPE_FLOAT32:
      return kernels::DType::kFloat32;
    case v1::DTYPE_BFLOAT16:
      return kernels::DType::kBFloat16;
    case v1::DTYPE_FLOAT16:
      return kernels::DType::kFloat16;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", base::Quoted(tensor), ": dtype ", static_cast<int>(dtype),
          " is not one of float32, bfloat16, float16"));
  }
}

absl::StatusOr<kernels::OptimizerKind> FromProto(v1::OptimizerName name) {
  switch (name) {
    case v1::OPTIMIZER_SGD:
      return kernels::OptimizerKind::kSgd;
    case v1::OPTIMIZER_ADAM:
      return kernels::OptimizerKind::kAdam;
    case v1::OPTIMIZER_ADAMW:
      return kernels::OptimizerKind::kAdamW;
    case v1::OPTIMIZER_LION:
      return kernels::OptimizerKind::kLion;
    case v1::OPTIMIZER_ADAGRAD:
      return kernels::OptimizerKind::kAdagrad;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer ", static_cast<int>(name),
                       " is not one of sgd, adam, adamw, lion, adagrad"));
  }
}

v1::DType ToProto(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kFloat32:
      return v1::DTYPE_FLOAT32;
    case kernels::DType::kBFloat16:
      return v1::DTYPE_BFLOAT16;
    case kernels::DType::kFloat16:
      return v1::DTYPE_FLOAT16;
  }
  return v1::DTYPE_UNSPECIFIED;
}

v1::OptimizerName ToProto(kernels::OptimizerKind kind) {
  switch (kind) {
    case kernels::OptimizerKind::kSgd:
      return v1::OPTIMIZER_SGD;
    case kernels::OptimizerKind::kAdam:
      return v1::OPTIMIZER_ADAM;
    case kernels::OptimizerKind::kAdamW:
      return v1::OPTIMIZER_ADAMW;
    case kernels::OptimizerKind::kLion:
      return v1::OPTIMIZER_LION;
    case kernels::OptimizerKind::kAdagrad:
      return v1::OPTIMIZER_ADAGRAD;
  }
  return v1::OPTIMIZER_UNSPECIFIED;
}

v1::Resume ToProto(session::Resume resume) {
  switch (resume) {
    case session::Resume::kAuto:
      return v1::RESUME_AUTO;
    case session::Resume::kNever:
      return v1::RESUME_NEVER;
    case session::Resume::kMust:
      return v1::RESUME_MUST;
  }
  return v1::RESUME_AUTO;
}

absl::StatusOr<session::Resume> FromProto(v1::Resume resume) {
  switch (resume) {
    case v1::RESUME_AUTO:
      return session::Resume::kAuto;
    case v1::RESUME_NEVER:
      return session::Resume::kNever;
    case v1::RESUME_MUST:
      return session::Resume::kMust;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "resume ", static_cast<int>(resume), " is not auto, never or must"));
  }
}

kernels::HyperParameters FromProto(const v1::ParamGroup& group) {
  return {.lr = group.lr(),
          .beta1 = group.beta1(),
          .beta2 = group.beta2(),
          .eps = group.eps(),
          .weight_decay = group.weight_decay(),
          .momentum = group.momentum(),
          .dampening = group.dampening(),
          .nesterov = group.nesterov(),
          .lr_decay = group.lr_decay(),
          .initial_accumulator_value = group.initial_accumulator_value()};
}

v1::ParamGroup ToProto(const kernels::HyperParameters& group) {
  v1::ParamGroup proto;
  proto.set_lr(group.lr);
  proto.set_beta1(group.beta1);
  proto.set_beta2(group.beta2);
  proto.set_eps(group.eps);
  proto.set_weight_decay(group.weight_decay);
  proto.set_momentum(group.momentum);
  proto.set_dampening(group.dampening);
  proto.set_nesterov(group.nesterov);
  proto.set_lr_decay(group.lr_decay);
  proto.set_initial_accumulator_value(group.initial_accumulator_value);
  return proto;
}

absl::StatusOr<layout::TensorSpec> FromProto(const v1::Tensor& tensor) {
  layout::TensorSpec spec;
  spec.name = tensor.name();
  spec.shape.assign(tensor.shape().begin(), tensor.shape().end());
  ASSIGN_OR_RETURN(spec.dtype, FromProto(tensor.dtype(), tensor.name()));
  spec.trainable = !tensor.frozen();
  if (tensor.group() > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", base::Quoted(tensor.name()), ": group ",
                     tensor.group(), " does not exist"));
  }
  spec.group = static_cast<int>(tensor.group());
  return spec;
}

absl::StatusOr<session::JobSpec> FromProto(const v1::JobSpec& job) {
  if (!job.has_optimizer()) return Missing("job.optimizer");
  session::JobSpec spec;
  spec.name = job.name();
  if (!job.tenant().empty()) spec.tenant = job.tenant();
  spec.tensors.reserve(job.tensors_size());
  for (const v1::Tensor& tensor : job.tensors()) {
    ASSIGN_OR_RETURN(layout::TensorSpec parsed, FromProto(tensor));
    spec.tensors.push_back(std::move(parsed));
  }
  ASSIGN_OR_RETURN(spec.optimizer, FromProto(job.optimizer().name()));
  for (const v1::ParamGroup& group : job.optimizer().groups()) {
    spec.groups.push_back(FromProto(group));
  }
  if (!job.exchange().preset().empty()) {
    spec.exchange = job.exchange().preset();
  }
  spec.gradient_clipping = job.gradient_clipping();
  spec.bucket_bytes = job.bucket_bytes();
  if (!std::isfinite(job.hold_seconds())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hold_seconds is ", job.hold_seconds(), ", must be finite"));
  }
  spec.hold = absl::Seconds(job.hold_seconds());
  if (job.hold_seconds() != 0 && spec.hold == absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("hold_seconds is ", job.hold_seconds(),
                     ", must be 0 (the default) or at least 0.001"));
  }
  return spec;
}

}  // namespace

absl::StatusOr<session::AttachRequest> FromProto(
    const v1::AttachRequest& request) {
  if (!request.has_job()) return Missing("job");
  if (!request.has_topology()) return Missing("topology");
  const v1::Topology& topology = request.topology();
  session::AttachRequest parsed;
  ASSIGN_OR_RETURN(parsed.job, FromProto(request.job()));
  ASSIGN_OR_RETURN(parsed.resume, FromProto(request.resume()));
  parsed.placement.rank = Rank(topology.rank());
  parsed.placement.world_size = topology.world_size();
  parsed.placement.local_rank = LocalRank(topology.local_rank());
  parsed.placement.local_world_size = topology.local_world_size();
  parsed.placement.node_rank = NodeRank(topology.node_rank());
  parsed.has_initial_values = request.has_initial_values();
  parsed.job.coordinator = request.coordinator();
  parsed.job.load = request.load();
  return parsed;
}

v1::AttachRequest ToProto(const session::AttachRequest& request) {
  const session::JobSpec& spec = request.job;
  v1::AttachRequest proto;
  v1::JobSpec& job = *proto.mutable_job();
  job.set_name(spec.name);
  job.set_tenant(spec.tenant);
  for (const layout::TensorSpec& tensor : spec.tensors) {
    v1::Tensor& out = *job.add_tensors();
    out.set_name(tensor.name);
    out.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    out.set_dtype(ToProto(tensor.dtype));
    out.set_frozen(!tensor.trainable);
    out.set_group(tensor.group);
  }
  job.mutable_optimizer()->set_name(ToProto(spec.optimizer));
  for (const kernels::HyperParameters& group : spec.groups) {
    *job.mutable_optimizer()->add_groups() = ToProto(group);
  }
  job.mutable_exchange()->set_preset(spec.exchange);
  job.set_gradient_clipping(spec.gradient_clipping);
  job.set_bucket_bytes(spec.bucket_bytes);
  job.set_hold_seconds(absl::ToDoubleSeconds(spec.hold));
  const session::Placement& placement = request.placement;
  v1::Topology& topology = *proto.mutable_topology();
  topology.set_rank(placement.rank.value());
  topology.set_world_size(placement.world_size);
  topology.set_local_rank(placement.local_rank.value());
  topology.set_local_world_size(placement.local_world_size);
  topology.set_node_rank(placement.node_rank.value());
  proto.set_resume(ToProto(request.resume));
  proto.set_has_initial_values(request.has_initial_values);
  proto.set_coordinator(spec.coordinator);
  proto.set_load(spec.load);
  return proto;
}

v1::AttachReply ToProto(const session::AttachReply& reply) {
  const layout::Layout& layout = *reply.layout;
  v1::AttachReply proto;
  proto.set_incarnation(reply.incarnation.value());
  proto.set_layout_digest(layout.digest());
  for (const layout::TensorPlace& place : layout.places()) {
    v1::TensorPlacement* const tensor = proto.add_tensors();
    tensor->set_weight_offset(place.weight_offset);
    tensor->set_gradient_offset(place.gradient_offset);
    tensor->set_first_bucket(place.first_bucket);
    tensor->set_last_bucket(place.last_bucket);
    if (reply.units == nullptr) continue;
    const layout::UnitRange range =
        reply.units->UnitsOf(TensorId(proto.tensors_size() - 1));
    tensor->set_first_unit(range.first);
    tensor->set_last_unit(range.last);
  }
  if (reply.units != nullptr) {
    proto.set_num_units(reply.units->size());
    proto.set_num_frozen_units(reply.units->size() -
                               static_cast<int>(layout.buckets().size()));
  }
  proto.set_num_buckets(static_cast<int>(layout.buckets().size()));
  proto.set_weights_bytes(layout.weights_bytes());
  proto.set_gradients_bytes(layout.gradients_bytes());
  proto.set_initial_bytes(reply.initial_bytes);
  proto.set_resumed(reply.resumed);
  return proto;
}

v1::BeginReply ToProto(const session::BeginReply& reply) {
  v1::BeginReply proto;
  proto.set_generation(reply.generation.value());
  proto.set_open_step(reply.open_step.value());
  proto.set_weight_version(reply.weight_version.value());
  proto.set_optimizer_step(reply.optimizer_step);
  proto.set_cursor(reply.cursor);
  for (const kernels::HyperParameters& group : reply.groups) {
    *proto.add_groups() = ToProto(group);
  }
  proto.mutable_pushed_buckets()->Add(reply.pushed_buckets.begin(),
                                      reply.pushed_buckets.end());
  proto.set_rank0_cursor(reply.rank0_cursor);
  proto.set_source(reply.source);
  if (reply.step_cursor.has_value()) {
    proto.set_has_step_input(true);
    proto.set_step_cursor(*reply.step_cursor);
  }
  return proto;
}

}  // namespace ballast::service
