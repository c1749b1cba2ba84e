// ballastctl: what an operator asks of a daemon.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <string>

#include "client/ctl/checkpoint.h"
#include "client/ctl/commands.h"

namespace ballast::ctl {
namespace {

void AddVerb(CLI::App* app, const char* name, const char* help,
             std::function<Result()>* run, std::function<Result()> action) {
  app->add_subcommand(name, help)->callback([run, action = std::move(action)] {
    *run = action;
  });
}

int Main(int argc, char** argv) {
  CLI::App app(
      "ballastctl: asks a ballastd how it is\n"
      "exit codes: 0 ok, 1 failed, 2 usage, 3 unreachable, 4 not found, "
      "5 refused");
  app.require_subcommand(1);
  app.fallthrough();
  Options options;
  std::string job;
  std::function<Result()> run;
  app.add_option("--address", options.address,
                 "unix:///path or host:port of the daemon's admin address")
      ->capture_default_str();
  app.add_flag("--json", options.json, "JSON instead of tables");
  AddVerb(&app, "status", "the daemon and its jobs", &run,
          [&] { return Status(options); });
  AddVerb(&app, "jobs", "all jobs", &run, [&] { return Jobs(options); });
  CLI::App* const job_verb =
      app.add_subcommand("job", "one job and its workers");
  job_verb->add_option("name", job, "the job's name")->required();
  bool adopts = false;
  job_verb->add_flag(
      "--adopt", adopts,
      "it goes on without the nodes that it waits for: they are gone for good, "
      "or will be ended (at node 0)");
  job_verb->callback([&] {
    run = [&] { return adopts ? Adopt(options, job) : Job(options, job); };
  });
  AddVerb(&app, "drain", "finish open work, tell the workers, exit", &run,
          [&] { return Drain(options); });
  AddVerb(&app, "doctor", "what is wrong with daemon and jobs, and what to do",
          &run, [&] { return Doctor(options); });
  AddVerb(&app, "version", "the daemon's version", &run,
          [&] { return Version(options); });
  std::string name;
  std::string path;
  std::string out;
  bool whole_state = false;
  CLI::App* const checkpoint =
      app.add_subcommand("checkpoint", "snapshots: save, list, verify, export");
  checkpoint->require_subcommand(1);
  CLI::App* const save = checkpoint->add_subcommand(
      "save", "take one of a job now; returns when it is durable");
  save->add_option("job", job, "the job's name")->required();
  save->add_option("name", name, "the snapshot's; by default its step");
  save->callback(
      [&] { run = [&] { return CheckpointSave(options, job, name); }; });
  CLI::App* const list = checkpoint->add_subcommand(
      "list", "what is in a daemon's snapshots.directory");
  list->add_option("directory", path)->required();
  list->callback([&] { run = [&] { return CheckpointList(options, path); }; });
  CLI::App* const verify = checkpoint->add_subcommand(
      "verify", "read every byte of a snapshot and compare the checksums");
  verify->add_option("path", path, "DIRECTORY/JOB/NAME")->required();
  verify->callback(
      [&] { run = [&] { return CheckpointVerify(options, path); }; });
  CLI::App* const exporter = checkpoint->add_subcommand(
      "export", "write a snapshot's weights as one safetensors file");
  exporter->add_option("path", path, "DIRECTORY/JOB/NAME")->required();
  exporter->add_option("out", out, "the file to make")->required();
  exporter->add_flag("--state", whole_state, "masters and moments too");
  exporter->callback([&] {
    run = [&] { return CheckpointExport(options, path, out, whole_state); };
  });
  for (const LaterVerb& verb : LaterVerbs()) {
    CLI::App* const later = app.add_subcommand(verb.name, "")->group("");
    // Whatever follows: the answer is the same.
    later->fallthrough(false)->allow_extras()->prefix_command();
    later->callback([&run, &verb] { run = [&verb] { return Later(verb); }; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kOk : kUsage;
  }
  const Result result = run();
  std::fputs(result.out.c_str(), stdout);
  if (!result.err.empty()) {
    std::fprintf(stderr, "ballastctl: %s\n", result.err.c_str());
  }
  return result.code;
}

}  // namespace
}  // namespace ballast::ctl

int main(int argc, char** argv) { return ballast::ctl::Main(argc, argv); }
