#include "server/service/convert.h"

#include <limits>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::service {
namespace {

using base::IsOk;
using base::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

v1::AttachRequest Request() {
  v1::AttachRequest request;
  v1::JobSpec* const job = request.mutable_job();
  job->set_name("gpt2");
  v1::Tensor* const tensor = job->add_tensors();
  tensor->set_name("wte");
  tensor->add_shape(5);
  tensor->set_dtype(v1::DTYPE_BFLOAT16);
  tensor->set_frozen(true);
  job->mutable_optimizer()->set_name(v1::OPTIMIZER_ADAMW);
  job->mutable_optimizer()->add_groups()->set_lr(0.5);
  request.mutable_topology()->set_rank(3);
  return request;
}

TEST(ConvertTest, CarriesEveryField) {
  const auto parsed = FromProto(Request());
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->job.name, "gpt2");
  EXPECT_EQ(parsed->job.tenant, "default");
  EXPECT_EQ(parsed->job.tensors[0].shape[0], 5);
  EXPECT_EQ(parsed->job.tensors[0].dtype, kernels::DType::kBFloat16);
  EXPECT_FALSE(parsed->job.tensors[0].trainable);
  EXPECT_EQ(parsed->job.optimizer, kernels::OptimizerKind::kAdamW);
  EXPECT_EQ(parsed->job.groups[0].lr, 0.5);
  EXPECT_EQ(parsed->job.exchange, "exact");
  EXPECT_EQ(parsed->placement.rank, Rank(3));
}

// What is kept of a job for the next daemon is what its workers said.
TEST(ConvertTest, ARequestGoesThereAndBack) {
  v1::AttachRequest request = Request();
  v1::JobSpec* const job = request.mutable_job();
  job->set_tenant("team");
  job->mutable_exchange()->set_preset("zeropp weights.block=512");
  job->set_gradient_clipping(0.25);
  job->set_bucket_bytes(8192);
  job->set_hold_seconds(1.5);
  v1::Tensor* const scalar = job->add_tensors();
  scalar->set_name("scale");
  scalar->set_dtype(v1::DTYPE_FLOAT16);
  scalar->set_group(1);
  v1::ParamGroup* const group = job->mutable_optimizer()->add_groups();
  group->set_beta1(0.9);
  group->set_beta2(0.95);
  group->set_eps(1e-8);
  group->set_weight_decay(0.1);
  group->set_momentum(0.8);
  group->set_dampening(0.2);
  group->set_nesterov(true);
  group->set_lr_decay(0.3);
  group->set_initial_accumulator_value(2);
  v1::Topology* const topology = request.mutable_topology();
  topology->set_world_size(8);
  topology->set_local_rank(1);
  topology->set_local_world_size(2);
  topology->set_node_rank(1);
  request.set_resume(v1::RESUME_MUST);
  request.set_has_initial_values(true);
  request.set_coordinator("host:1");
  request.set_load("gpt2/step-7");
  for (const v1::DType dtype :
       {v1::DTYPE_FLOAT32, v1::DTYPE_BFLOAT16, v1::DTYPE_FLOAT16}) {
    for (const v1::OptimizerName name :
         {v1::OPTIMIZER_SGD, v1::OPTIMIZER_ADAM, v1::OPTIMIZER_ADAMW,
          v1::OPTIMIZER_LION, v1::OPTIMIZER_ADAGRAD}) {
      job->mutable_tensors(0)->set_dtype(dtype);
      job->mutable_optimizer()->set_name(name);
      const auto parsed = FromProto(request);
      ASSERT_THAT(parsed, IsOk());
      EXPECT_EQ(ToProto(*parsed).SerializeAsString(),
                request.SerializeAsString());
    }
  }
}

TEST(ConvertTest, KnowsEveryOptimizer) {
  v1::AttachRequest request = Request();
  request.mutable_job()->mutable_optimizer()->set_name(v1::OPTIMIZER_LION);
  EXPECT_EQ(FromProto(request)->job.optimizer, kernels::OptimizerKind::kLion);
  v1::Optimizer* const optimizer = request.mutable_job()->mutable_optimizer();
  optimizer->set_name(v1::OPTIMIZER_ADAGRAD);
  optimizer->mutable_groups(0)->set_lr_decay(0.25);
  optimizer->mutable_groups(0)->set_initial_accumulator_value(3);
  const auto parsed = FromProto(request);
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->job.optimizer, kernels::OptimizerKind::kAdagrad);
  EXPECT_EQ(parsed->job.groups[0].lr_decay, 0.25);
  EXPECT_EQ(parsed->job.groups[0].initial_accumulator_value, 3);
}

TEST(ConvertTest, NamesWhatIsMissing) {
  EXPECT_THAT(FromProto(v1::AttachRequest{}), StatusIs(kInvalid, "job"));
  v1::AttachRequest request = Request();
  request.clear_topology();
  EXPECT_THAT(FromProto(request), StatusIs(kInvalid, "topology"));
  request = Request();
  request.mutable_job()->clear_optimizer();
  EXPECT_THAT(FromProto(request), StatusIs(kInvalid, "job.optimizer"));
}

TEST(ConvertTest, RefusesUnknownEnumeratorsAndNumbers) {  // I26
  v1::AttachRequest request = Request();
  request.mutable_job()->mutable_tensors(0)->set_dtype(
      static_cast<v1::DType>(99));
  EXPECT_THAT(FromProto(request), StatusIs(kInvalid, "\"wte\": dtype 99"));
  request = Request();
  request.mutable_job()->mutable_tensors(0)->set_group(UINT32_MAX);
  EXPECT_THAT(FromProto(request), StatusIs(kInvalid, "group"));
  request = Request();
  request.mutable_job()->mutable_optimizer()->set_name(
      v1::OPTIMIZER_UNSPECIFIED);
  EXPECT_THAT(FromProto(request), StatusIs(kInvalid, "sgd, adam, adamw"));
  request = Request();
  request.set_resume(static_cast<v1::Resume>(7));
  EXPECT_THAT(FromProto(request), StatusIs(kInvalid, "resume 7"));
  request = Request();
  request.mutable_job()->set_hold_seconds(
      std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(FromProto(request), StatusIs(kInvalid, "hold_seconds"));
  request.mutable_job()->set_hold_seconds(1e-12);  // rounds to the default
  EXPECT_THAT(FromProto(request), StatusIs(kInvalid, "hold_seconds"));
}

TEST(ConvertTest, BeginReplyCarriesEveryField) {
  session::BeginReply reply;
  reply.generation = Generation(2);
  reply.open_step = Step(7);
  reply.weight_version = WeightVersion(6);
  reply.optimizer_step = 5;
  reply.cursor = std::string("a\0b", 3);
  reply.groups.resize(1);
  reply.groups[0].momentum = 0.9;
  reply.pushed_buckets = {1, 4};
  const v1::BeginReply proto = ToProto(reply);
  EXPECT_EQ(proto.generation(), 2);
  EXPECT_EQ(proto.open_step(), 7);
  EXPECT_EQ(proto.weight_version(), 6);
  EXPECT_EQ(proto.optimizer_step(), 5);
  EXPECT_EQ(proto.cursor().size(), 3);
  EXPECT_EQ(proto.groups(0).momentum(), 0.9);
  EXPECT_EQ(proto.pushed_buckets(1), 4);
  EXPECT_FALSE(proto.has_step_input());
  reply.step_cursor = "seven";
  reply.rank0_cursor = "rank 0's";
  EXPECT_EQ(ToProto(reply).rank0_cursor(), "rank 0's");
  EXPECT_TRUE(ToProto(reply).has_step_input());
  EXPECT_EQ(ToProto(reply).step_cursor(), "seven");
}

}  // namespace
}  // namespace ballast::service
