#include "server/service/peer_service.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "server/base/event_loop.h"
#include "server/base/status_matchers.h"
#include "server/service/grpc_server.h"
#include "server/service/peer_client.h"

namespace ballast::service {
namespace {

using base::StatusIs;
using Reply = absl::StatusOr<v1::RendezvousReply>;

constexpr absl::Duration kTimeout = absl::Seconds(30);

class PeerServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    loop_ = *base::EventLoop::Create(&clock_);
    auto server = GrpcServer::Listen(
        "127.0.0.1:0",
        MakePeerService({loop_.get(), &clock_, &rendezvous_, nullptr}),
        kMaxPeerMessageBytes);
    ASSERT_THAT(server, base::IsOk());
    server_ = *std::move(server);
    client_ = PeerClient::Create(server_->address(), loop_.get());
  }

  static v1::RendezvousRequest Request(int node) {
    v1::RendezvousRequest request;
    request.set_job("job");
    request.set_node(node);
    request.set_incarnation(100 + node);
    request.set_endpoint("endpoint");
    request.mutable_join()->set_num_nodes(2);
    return request;
  }

  Reply Call(const v1::RendezvousRequest& request,
             absl::Duration timeout = kTimeout) {
    std::optional<Reply> result;
    client_->Rendezvous(request, timeout,
                        [&](Reply reply) { result = std::move(reply); });
    while (!result.has_value()) loop_->RunOnce(absl::Seconds(1));
    return *std::move(result);
  }

  base::MonotonicClock clock_;
  std::unique_ptr<base::EventLoop> loop_;
  membership::Rendezvous rendezvous_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<PeerClient> client_;
};

TEST_F(PeerServiceTest, NodesMeet) {
  Reply reply = Call(Request(1));
  ASSERT_THAT(reply, base::IsOk());
  EXPECT_EQ(reply->waiting_for(), "node 0 of 2 has not come");
  ASSERT_THAT(rendezvous_.Poll(Request(0), clock_.Now()), base::IsOk());
  reply = Call(Request(1));
  ASSERT_THAT(reply, base::IsOk());
  EXPECT_EQ(reply->members_size(), 2);
}

TEST_F(PeerServiceTest, NodeZeroDoesNotComeFromOutside) {
  EXPECT_THAT(Call(Request(0)),
              StatusIs(absl::StatusCode::kInvalidArgument, "rank 0"));
}

// I27
TEST_F(PeerServiceTest, RefusesLongRequests) {
  v1::RendezvousRequest request = Request(1);
  request.set_endpoint(std::string(kMaxPeerMessageBytes, 'x'));
  EXPECT_THAT(Call(request), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(rendezvous_.num_members(), 0u);
}

// I23
TEST_F(PeerServiceTest, ADaemonThatIsNotThereIsUnavailable) {
  server_->Shutdown(absl::ZeroDuration());
  server_.reset();
  EXPECT_THAT(Call(Request(1)), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(PeerServiceTest, AClientMayGoWithACallOpen) {
  client_->Rendezvous(Request(1), kTimeout,
                      [](Reply) { ADD_FAILURE() << "given up"; });
  client_.reset();
  // What was posted runs, and nothing is heard.
  server_->Shutdown(absl::ZeroDuration());
  loop_->RunOnce(absl::ZeroDuration());
}

}  // namespace
}  // namespace ballast::service
