#include "server/metrics/metrics_page.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"
#include "server/base/unique_fd.h"

namespace ballast::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Invalid if it cannot connect. Reads end after five seconds.
base::UniqueFd Connect(int port) {
  base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = 5, .tv_usec = 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address),
              sizeof(address)) < 0) {
    socket.Reset();
  }
  return socket;
}

std::string Fetch(int port) {
  const base::UniqueFd socket = Connect(port);
  if (!socket) return "cannot connect";
  const std::string request =
      "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
  if (write(socket.get(), request.data(), request.size()) < 0) return "";
  std::string reply;
  char buffer[4096];
  ssize_t size;
  while ((size = read(socket.get(), buffer, sizeof(buffer))) > 0) {
    reply.append(buffer, size);
  }
  return reply;
}

TEST(MetricsPageTest, ServesWhatWasCounted) {
  Metrics metrics({"1.2.3", "abc", "gcc"});
  auto page = MetricsPage::Create("127.0.0.1:0", &metrics);
  ASSERT_THAT(page, base::IsOk());
  ASSERT_GT((*page)->port(), 0);
  EXPECT_EQ((*page)->address(), "127.0.0.1:" + std::to_string((*page)->port()));
  auto job = metrics.StartJob("gpt2");
  job->counter(Family::kSteps, {"committed"})->Increment(7);
  job->histogram(Family::kStepDuration, {"reduce"})->Observe(0.3);
  std::string text = Fetch((*page)->port());
  EXPECT_THAT(text, HasSubstr("200 OK"));
  EXPECT_THAT(text, HasSubstr("ballast_steps_total{job_id=\"gpt2\","
                              "outcome=\"committed\"} 7"));
  EXPECT_THAT(text, HasSubstr("ballast_step_duration_seconds_bucket{"
                              "job_id=\"gpt2\",stage=\"reduce\",le=\"0.5\"} "
                              "1"));
  EXPECT_THAT(text, HasSubstr("version=\"1.2.3\""));
  EXPECT_THAT(text, HasSubstr("process_open_fds"));
  EXPECT_THAT(text, HasSubstr("process_resident_memory_bytes"));
  job.reset();
  EXPECT_THAT(Fetch((*page)->port()), Not(HasSubstr("gpt2")));
}

// Three were enough to block the page for half a minute.
TEST(MetricsPageTest, SilentConnectionsDoNotBlockThePage) {
  Metrics metrics({});
  auto page = MetricsPage::Create("127.0.0.1:0", &metrics);
  ASSERT_THAT(page, base::IsOk());
  std::vector<base::UniqueFd> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(Connect((*page)->port()));
    ASSERT_TRUE(silent.back());
  }
  EXPECT_THAT(Fetch((*page)->port()), HasSubstr("200 OK"));
}

// I21: what never happened is a 0, not an absence.
TEST(MetricsPageTest, BoundedSeriesAreThereFromTheStart) {
  Metrics metrics({});
  const std::string text = ToText(metrics);
  EXPECT_THAT(text, HasSubstr("ballast_admission_rejections_total{reason="
                              "\"memory\"} 0"));
  EXPECT_THAT(text, HasSubstr("ballast_rpc_requests_total{method=\"Attach\","
                              "code=\"OK\"} 0"));
}

TEST(MetricsPageTest, AnAddressThatCannotBeServedIsAnError) {
  Metrics metrics({});
  for (const char* address :
       {"", "nonsense", ":80", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x",
        "127.0.0.1:0,127.0.0.1:1"}) {
    EXPECT_THAT(MetricsPage::Create(address, &metrics),
                base::StatusIs(absl::StatusCode::kInvalidArgument))
        << address;
  }
  auto page = MetricsPage::Create("127.0.0.1:0", &metrics);
  ASSERT_THAT(page, base::IsOk());
  EXPECT_THAT(MetricsPage::Create((*page)->address(), &metrics),
              base::StatusIs(absl::StatusCode::kUnavailable));
}

TEST(MetricsPageTest, PromtoolHasNoComplaint) {
  if (std::system("command -v promtool > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool is not installed";
  }
  Metrics metrics({"1.2.3", "abc", "gcc"});
  auto job = metrics.StartJob("gpt2");
  const std::string path =
      std::filesystem::path(::testing::TempDir()) / "metrics.txt";
  std::ofstream(path) << ToText(metrics);
  EXPECT_EQ(std::system(("promtool check metrics < " + path).c_str()), 0);
}

}  // namespace
}  // namespace ballast::metrics
