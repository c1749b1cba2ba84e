#include "client/ctl/commands.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/doctor.h"
#include "client/ctl/render.h"
#include "proto/admin.grpc.pb.h"
#include "proto/to_json.h"

namespace ballast::ctl {
namespace {

using Stub = v1::AdminService::Stub;

ExitCode CodeOf(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::OK:
      return kOk;
    case grpc::UNAVAILABLE:
    case grpc::DEADLINE_EXCEEDED:
      return kUnreachable;
    case grpc::NOT_FOUND:
      return kNotFound;
    case grpc::PERMISSION_DENIED:
    case grpc::UNAUTHENTICATED:
    case grpc::FAILED_PRECONDITION:
    case grpc::UNIMPLEMENTED:
      return kRefused;
    default:
      return kFailed;
  }
}

// gRPC would look a name up for long, or say something about its resolvers.
bool IsAddress(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) {
    return absl::StartsWith(address, "unix:///") && address.size() > 8;
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  int port;
  return address.find('/') == std::string::npos &&
         absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 &&
         port <= 65535;
}

template <typename Request, typename Reply>
Result Call(const Options& options,
            grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                         Reply*),
            const Request& request, Reply* reply) {
  if (!IsAddress(options.address)) {
    return {kUsage, "",
            absl::StrCat("--address \"", options.address,
                         "\" is not unix:///path or host:port")};
  }
  grpc::ChannelArguments arguments;
  // A proxy of the environment has no business between the two.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto stub = v1::AdminService::NewStub(grpc::CreateCustomChannel(
      options.address, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(options.timeout));
  const grpc::Status status = ((*stub).*method)(&context, request, reply);
  Result result;
  result.code = CodeOf(status);
  if (result.code == kUnreachable) {
    result.err = absl::StrCat("no daemon answers at ", options.address, ": ",
                              status.error_message());
  } else if (result.code != kOk) {
    result.err = status.error_message();
  }
  return result;
}

template <typename Request, typename Reply>
Result Show(const Options& options,
            grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                         Reply*),
            const Request& request) {
  Reply reply;
  Result result = Call(options, method, request, &reply);
  if (result.code == kOk) {
    result.out =
        options.json ? proto::ToJson(reply).dump(2) + "\n" : Render(reply);
  }
  return result;
}

}  // namespace

Result Status(const Options& options) {
  return Show<v1::StatusRequest, v1::StatusReply>(options, &Stub::Status, {});
}

Result Jobs(const Options& options) {
  return Show<v1::ListJobsRequest, v1::ListJobsReply>(options, &Stub::ListJobs,
                                                      {});
}

Result Job(const Options& options, const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  return Show<v1::GetJobRequest, v1::GetJobReply>(options, &Stub::GetJob,
                                                  request);
}

Result Adopt(const Options& options, const std::string& name) {
  v1::AdoptJobRequest request;
  request.set_name(name);
  v1::AdoptJobReply reply;
  Result result = Call(options, &Stub::AdoptJob, request, &reply);
  if (result.code == kOk) {
    result.out = options.json
                     ? "{}\n"
                     : absl::StrCat("job ", name,
                                    " goes on without the nodes that are "
                                    "missing\n");
  }
  return result;
}

Result Drain(const Options& options) {
  v1::DrainReply reply;
  Result result =
      Call<v1::DrainRequest, v1::DrainReply>(options, &Stub::Drain, {}, &reply);
  if (result.code == kOk) {
    result.out = options.json ? "{}\n" : "the daemon drains and then exits\n";
  }
  return result;
}

Result Version(const Options& options) {
  return Show<v1::VersionRequest, v1::VersionReply>(options, &Stub::Version,
                                                    {});
}

Result CheckpointSave(Options options, const std::string& job,
                      const std::string& name) {
  options.timeout = absl::Hours(24);
  v1::SaveSnapshotRequest request;
  request.set_job(job);
  request.set_name(name);
  v1::SaveSnapshotReply reply;
  Result result = Call(options, &Stub::SaveSnapshot, request, &reply);
  if (result.code == kOk) {
    result.out = options.json
                     ? proto::ToJson(reply).dump(2) + "\n"
                     : absl::StrCat(reply.path(), ": step ", reply.step(), ", ",
                                    FormatBytes(reply.size_bytes()), "\n");
  }
  return result;
}

Result Doctor(const Options& options) {
  v1::StatusReply status;
  Result result = Call<v1::StatusRequest, v1::StatusReply>(
      options, &Stub::Status, {}, &status);
  std::vector<v1::GetJobReply> jobs;
  for (const v1::JobSummary& job : status.jobs()) {
    if (result.code != kOk) return result;
    v1::GetJobRequest request;
    request.set_name(job.name());
    result = Call(options, &Stub::GetJob, request, &jobs.emplace_back());
    if (result.code == kNotFound) {  // ended since
      jobs.pop_back();
      result = {};
    }
  }
  if (result.code != kOk) return result;
  const std::vector<Finding> findings = Examine(status, jobs);
  result.out =
      options.json ? ToJson(findings).dump(2) + "\n" : Render(findings);
  if (!IsWell(findings)) result.code = kFailed;
  return result;
}

const std::vector<LaterVerb>& LaterVerbs() {
  static const std::vector<LaterVerb> verbs = {
      {"top", "until it is, watch ballastctl jobs"},
      {"plan", "ballastctl job NAME shows layout, policy and errors of one"},
      {"quota", "it comes with tenants and quotas"},
      {"priority", "it comes with tenants and quotas"},
      {"evict", "it comes with tenants and quotas"},
  };
  return verbs;
}

Result Later(const LaterVerb& verb) {
  return {kRefused, "",
          absl::StrCat("\"", verb.name, "\" is not there yet: ", verb.instead)};
}

}  // namespace ballast::ctl
