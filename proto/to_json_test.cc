#include "proto/to_json.h"

#include <cmath>

#include "gtest/gtest.h"
#include "proto/admin.pb.h"

namespace ballast::proto {
namespace {

TEST(ToJsonTest, ShowsEveryFieldAndIntegersAsNumbers) {
  v1::GetJobReply reply;
  reply.mutable_summary()->set_name("gpt2");
  reply.set_steps_committed(int64_t{1} << 40);
  reply.set_last_grad_norm(0.5);
  reply.add_workers()->set_rank(3);
  const nlohmann::ordered_json json = ToJson(reply);
  EXPECT_EQ(json["summary"]["name"], "gpt2");
  EXPECT_EQ(json["steps_committed"], int64_t{1} << 40);
  EXPECT_TRUE(json["steps_committed"].is_number());
  EXPECT_EQ(json["steps_skipped"], 0);
  EXPECT_EQ(json["last_grad_norm"], 0.5);
  EXPECT_EQ(json["workers"][0]["rank"], 3);
}

TEST(ToJsonTest, WhatJsonCannotSayIsNull) {
  v1::GetJobReply reply;
  reply.set_last_grad_norm(std::nan(""));
  EXPECT_TRUE(ToJson(reply)["last_grad_norm"].is_null());
}

}  // namespace
}  // namespace ballast::proto
