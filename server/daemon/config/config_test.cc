#include "server/daemon/config/config.h"

#include <string>

#include "gtest/gtest.h"
#include "server/base/random.h"
#include "server/base/status_matchers.h"

namespace ballast::daemon {
namespace {

using base::IsOk;
using base::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ConfigTest, DefaultsAreValidAndPrintable) {
  const v1::Config config = DefaultConfig();
  EXPECT_THAT(CheckConfig(config), IsOk());
  v1::Config again;
  ASSERT_THAT(ApplyYaml(PrintConfig(config), &again), IsOk());
  EXPECT_EQ(PrintConfig(again), PrintConfig(config));
}

TEST(ConfigTest, YamlLiesOverDefaults) {
  v1::Config config = DefaultConfig();
  ASSERT_THAT(ApplyYaml("compute:\n  bucket_bytes: 256KiB\n  threads: 3\n"
                        "listen: {http: off}\n"
                        "security:\n  require_same_uid: true\n"
                        "jobs:\n",
                        &config),
              IsOk());
  EXPECT_EQ(config.compute().bucket_bytes(), 256 << 10);
  EXPECT_EQ(config.compute().threads(), 3);
  EXPECT_EQ(config.listen().http(), "off");
  EXPECT_TRUE(config.security().require_same_uid());
  EXPECT_EQ(config.jobs().hold(), "10m");  // an empty section changes nothing
}

TEST(ConfigTest, UnknownKeysAreErrorsWithTheNearest) {  // I21
  v1::Config config = DefaultConfig();
  EXPECT_THAT(ApplyYaml("compute:\n  thread: 1\n", &config),
              StatusIs(kInvalid,
                       "unknown config key \"compute.thread\"; the nearest "
                       "known key is \"compute.threads\""));
  EXPECT_THAT(ApplyYaml("hold: 1m\n", &config),
              StatusIs(kInvalid, "\"jobs.hold\""));
  EXPECT_THAT(ApplyYaml("lisen:\n  http: off\n", &config),
              StatusIs(kInvalid, "\"listen\""));
  EXPECT_THAT(ApplyOverride("log.levle=debug", &config),
              StatusIs(kInvalid, "\"log.level\""));
}

TEST(ConfigTest, WrongTypesNameKeyValueAndExpectation) {
  v1::Config config = DefaultConfig();
  EXPECT_THAT(ApplyYaml("compute: {threads: many}", &config),
              StatusIs(kInvalid,
                       "config key \"compute.threads\" is \"many\", expected "
                       "an integer"));
  EXPECT_THAT(ApplyYaml("compute: {chunk_bytes: -1}", &config),
              StatusIs(kInvalid, "expected a size"));
  EXPECT_THAT(ApplyYaml("compute: 4", &config),
              StatusIs(kInvalid, "expected a section"));
  EXPECT_THAT(ApplyYaml("log: {level: [info]}", &config),
              StatusIs(kInvalid, "expected one value"));
  EXPECT_THAT(ApplyYaml("security: {require_same_uid: yes}", &config),
              StatusIs(kInvalid, "true or false"));
  EXPECT_THAT(ApplyYaml("log: {level: info, level: warn}", &config),
              StatusIs(kInvalid, "given twice"));
  EXPECT_THAT(ApplyYaml("- a\n- b", &config), StatusIs(kInvalid));
  EXPECT_THAT(ApplyYaml("a: b: c:", &config), StatusIs(kInvalid, "not YAML"));
}

// Goes into UCX's configuration, which has a syntax of its own.
TEST(ConfigTest, TransportTakesPlainNamesOnly) {
  for (const char* wrong :
       {"transport.ucx_tls=", "transport.ucx_tls=tcp;x",
        "transport.ucx_tls=t p", "transport.ucx_devices=eth0\nX",
        "transport.chunk_bytes=1KiB", "transport.peer_timeout=0s",
        "transport.listen_address=node-0", "transport.listen_address=0.0.0.0",
        "transport.connect_timeout=soon", "transport.relink_timeout=100ms",
        "transport.relink_timeout=-1s", "transport.gather=pairwise",
        "transport.gather=halving", "transport.reduce=ring",
        "transport.reduce=fast"}) {
    EXPECT_THAT(LoadConfig("", {wrong}), StatusIs(kInvalid, "transport."))
        << wrong;
  }
  EXPECT_THAT(
      LoadConfig(
          "",
          {"transport.ucx_tls=tcp,self", "transport.ucx_devices=eth0,mlx5_0:1",
           "transport.peer_timeout=3s", "transport.gather=doubling",
           "transport.relink_timeout=0s", "transport.reduce=halving"}),
      IsOk());
}

TEST(ConfigTest, ProcessorsAreThoseThatMayBeUsed) {
  for (const char* wrong : {"compute.cpus=all", "compute.cpus=1000-1023",
                            "compute.cpus=3-1", "compute.cpus=0,"}) {
    EXPECT_THAT(LoadConfig("", {wrong}), StatusIs(kInvalid, "may use"))
        << wrong;
  }
  EXPECT_THAT(LoadConfig("", {"compute.cpus="}), IsOk());
}

TEST(ConfigTest, OverridesComeLastAndAreStrict) {
  const auto config =
      LoadConfig("", {"jobs.hold=30s", "listen.http=127.0.0.1:0"});
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->jobs().hold(), "30s");
  EXPECT_THAT(LoadConfig("", {"snapshots.directory=/snapshots",
                              "snapshots.every_steps=100",
                              "snapshots.max_bytes_per_second=100MiB"}),
              IsOk());
  EXPECT_THAT(LoadConfig("", {"snapshots.directory=/snapshots",
                              "snapshots.every=soon"}),
              StatusIs(kInvalid, "snapshots.every"));
  EXPECT_THAT(LoadConfig("", {"keeper.socket=/run/ballast/keeper.sock",
                              "keeper.program=/usr/bin/ballast-keeper"}),
              IsOk());
  EXPECT_THAT(LoadConfig("", {"keeper.socket=/run/ballast/keeper.sock",
                              "keeper.program=ballast-keeper"}),
              StatusIs(kInvalid, "keeper.program"));
  EXPECT_THAT(LoadConfig("", {"jobs.hold"}), StatusIs(kInvalid, "no value"));
  EXPECT_THAT(LoadConfig("", {"jobs=1"}), StatusIs(kInvalid));
  EXPECT_THAT(LoadConfig("", {"jobs.hold.x=1"}), StatusIs(kInvalid));
}

TEST(ConfigTest, BoundsAreChecked) {
  for (const char* bad : {"compute.threads=-1",
                          "compute.chunk_bytes=1",
                          "limits.max_jobs=0",
                          "limits.max_idle_connections=0",
                          "limits.idle_connection_timeout=0s",
                          "limits.max_idle_connections_per_uid=-1",
                          "compute.bucket_bytes=1TiB",
                          "jobs.hold=0s",
                          "jobs.hold=inf",
                          "jobs.join_timeout=fast",
                          "log.level=loud",
                          "listen.http=7471",
                          "listen.health=a:99999",
                          "listen.workers=/run/x",
                          "listen.workers=unix://relative",
                          "listen.admin=0.0.0.0:7473",
                          "listen.peer=7470",
                          "node.coordinator=a",
                          "snapshots.directory=relative",
                          "snapshots.every_steps=5",
                          "snapshots.every=1h",
                          "snapshots.every_steps=-1",
                          "snapshots.keep=-1",
                          "replicas.every_steps=-1",
                          "replicas.max_bytes_per_second=-1",
                          "keeper.socket=relative.sock",
                          "keeper.program=/usr/bin/ballast-keeper"}) {
    EXPECT_THAT(LoadConfig("", {bad}), StatusIs(kInvalid)) << bad;
  }
  EXPECT_THAT(
      LoadConfig("", {"listen.workers=unix:///" + std::string(200, 'x')}),
      StatusIs(kInvalid, "107 bytes"));
}

TEST(ConfigTest, AMissingFileIsNamed) {
  EXPECT_THAT(
      LoadConfig("/nonexistent/ballast.yaml", {}),
      StatusIs(absl::StatusCode::kNotFound, "/nonexistent/ballast.yaml"));
}

TEST(ConfigTest, NoBytesCrashIt) {  // I27
  base::SeededRandom random(3);
  const std::string start = PrintConfig(DefaultConfig());
  for (int round = 0; round < 500; ++round) {
    std::string yaml = start;
    for (int i = 0; i < 8; ++i) {
      yaml[random.Below(yaml.size())] = static_cast<char>(random.Next());
    }
    v1::Config config = DefaultConfig();
    if (ApplyYaml(yaml, &config).ok()) CheckConfig(config).IgnoreError();
  }
}

}  // namespace
}  // namespace ballast::daemon
