#include "client/worker/fake_daemon.h"

#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "proto/handle_socket.h"
#include "server/base/futex.h"
#include "server/base/status_macros.h"
#include "server/ipc/fd_passing.h"

namespace ballast::worker {
namespace {

constexpr char kKey[] = "000102030405060708090a0b0c0d0e0f";

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()));
}

template <typename T>
std::span<const std::byte> BytesOf(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace

FakeDaemon::Script FakeDaemon::DefaultScript() {
  Script script;
  script.begin.set_generation(1);
  script.begin.set_open_step(1);
  script.begin.add_groups()->set_lr(0.5);
  return script;
}

FakeDaemon::FakeDaemon(Script script) : script_(std::move(script)) {
  std::string name = "/tmp/ballast-fake-XXXXXX";
  directory_ = mkdtemp(name.data()) != nullptr ? name : "";
  address_ = directory_ + "/daemon.sock";
  listener_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  address_.copy(where.sun_path, sizeof(where.sun_path) - 1);
  if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&where),
           sizeof(where)) != 0 ||
      listen(listener_.get(), 4) != 0) {
    std::abort();
  }
  grpc::ServerBuilder builder;
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  acceptor_ = std::thread([this] { Accept(); });
}

FakeDaemon::~FakeDaemon() {
  shutdown(listener_.get(), SHUT_RDWR);  // ends accept()
  acceptor_.join();
  server_->Shutdown(std::chrono::system_clock::now());
  unlink(address_.c_str());
  rmdir(directory_.c_str());
}

void FakeDaemon::Accept() {
  for (;;) {
    base::UniqueFd peer(
        accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer) return;
    Welcome(std::move(peer));
    if (script_.is_deaf && num_hellos_ == script_.passing_refusals) return;
  }
}

void FakeDaemon::Welcome(base::UniqueFd peer) {
  pollfd readable{peer.get(), POLLIN, 0};
  poll(&readable, 1, -1);
  std::byte buffer[256];
  ipc::Packet hello;
  if (!ipc::ReceivePacket(peer.get(), buffer, &hello).ok()) return;
  const bool is_passing = ++num_hellos_ <= script_.passing_refusals;
  if (script_.refuse_hello || is_passing) {
    struct {
      proto::RefusalMessage message{};
      char text[9] = {'t', 'r', 'y', ' ', 'a', 'g', 'a', 'i', 'n'};
    } refusal;
    static_assert(offsetof(decltype(refusal), text) ==
                  sizeof(proto::RefusalMessage));
    refusal.message.header = {proto::kHandleMagic,
                              proto::HandleMessageKind::kRefusal};
    refusal.message.code =
        static_cast<int>(is_passing ? absl::StatusCode::kResourceExhausted
                                    : absl::StatusCode::kPermissionDenied);
    const auto bytes =
        BytesOf(refusal).first(sizeof(refusal.message) + sizeof(refusal.text));
    ipc::SendPacket(peer.get(), bytes, {}).status().IgnoreError();
    return;
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                 ends) != 0) {
    return;
  }
  const base::UniqueFd theirs(ends[1]);
  proto::WelcomeMessage welcome{};
  welcome.header = {proto::kHandleMagic, proto::HandleMessageKind::kWelcome};
  welcome.version = proto::kHandleVersion;
  for (uint8_t i = 0; i < sizeof(welcome.key); ++i) welcome.key[i] = i;
  base::MutexLock lock(&mutex_);
  handle_ = std::move(peer);
  control_end_.Reset(dup(ends[0]));
  grpc::AddInsecureChannelFromFd(server_.get(), ends[0]);
  const int fds[] = {theirs.get()};
  ipc::SendPacket(handle_.get(), BytesOf(welcome), fds).status().IgnoreError();
}

// As a process under SIGSTOP; ends when the caller gives up.
void FakeDaemon::Stay(grpc::ServerContext* context) const {
  while (script_.is_stopped && !context->IsCancelled()) {
    poll(nullptr, 0, 5);
  }
}

absl::Status FakeDaemon::MakeSegments(const v1::AttachRequest& request) {
  const int tensors = request.job().tensors_size();
  num_buckets_ = 0;
  for (const auto& tensor : request.job().tensors()) {
    num_buckets_ += !tensor.frozen();
  }
  layout_ = proto::ControlBlockLayout::For(num_buckets_, 1);
  ASSIGN_OR_RETURN(control_,
                   base::Segment::Create("control", layout_.size_bytes));
  ASSIGN_OR_RETURN(weights_,
                   base::Segment::Create("weights", kTensorBytes * tensors));
  ASSIGN_OR_RETURN(gradients_,
                   base::Segment::Create("gradients", kTensorBytes * tensors));
  ASSIGN_OR_RETURN(initial_,
                   base::Segment::Create("initial", kTensorBytes * tensors));
  std::byte* const block = control_.bytes().data();
  auto& header = *reinterpret_cast<proto::ControlBlockHeader*>(block);
  header.magic = proto::kControlBlockMagic;
  header.version = proto::kControlBlockVersion;
  header.num_buckets = num_buckets_;
  header.num_groups = 1;
  header.size_bytes = layout_.size_bytes;
  reinterpret_cast<proto::DaemonArea*>(block + layout_.daemon_area_offset)
      ->open = proto::SequenceWord(script_.begin.generation(),
                                   script_.begin.open_step());
  return absl::OkStatus();
}

absl::Status FakeDaemon::SendSegments() {
  const auto send = [&](proto::SegmentKind kind, base::UniqueFd fd,
                        uint64_t size_bytes) {
    proto::SegmentMessage message{};
    message.header = {proto::kHandleMagic, proto::HandleMessageKind::kSegment};
    message.segment = kind;
    message.size_bytes = size_bytes;
    const int fds[] = {fd.get()};
    return ipc::SendPacket(handle_.get(), BytesOf(message), fds).status();
  };
  ASSIGN_OR_RETURN(base::UniqueFd read_only, weights_.OpenReadOnly());
  RETURN_IF_ERROR(send(proto::SegmentKind::kWeights, std::move(read_only),
                       weights_.size_bytes() + script_.weights_lie));
  ASSIGN_OR_RETURN(base::UniqueFd control, control_.Duplicate());
  RETURN_IF_ERROR(send(proto::SegmentKind::kControlBlock, std::move(control),
                       control_.size_bytes()));
  ASSIGN_OR_RETURN(base::UniqueFd gradients, gradients_.Duplicate());
  RETURN_IF_ERROR(send(proto::SegmentKind::kGradients, std::move(gradients),
                       gradients_.size_bytes()));
  ASSIGN_OR_RETURN(base::UniqueFd initial, initial_.Duplicate());
  return send(proto::SegmentKind::kInitial, std::move(initial),
              initial_.size_bytes());
}

bool FakeDaemon::KeyFits(const grpc::ServerContext& context) const {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(proto::kKeyMetadata);
  return found != metadata.end() && found->second == kKey;
}

grpc::Status FakeDaemon::Attach(grpc::ServerContext* context,
                                const v1::AttachRequest* request,
                                v1::AttachReply* reply) {
  if (!KeyFits(*context)) {
    return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "wrong key");
  }
  const int number = ++num_attached_;
  base::MutexLock lock(&mutex_);
  // Each refused Attach brings a new connection.
  if (num_hellos_ <= 2 * script_.passing_refusals) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "ending: try again");
  }
  if (script_.on_attach) {
    const absl::Status status = script_.on_attach(number);
    if (!status.ok()) return ToGrpc(status);
  }
  if (absl::Status status = MakeSegments(*request); !status.ok()) {
    return ToGrpc(status);
  }
  for (int i = 0, bucket = 0; i < request->job().tensors_size(); ++i) {
    v1::TensorPlacement* place = reply->add_tensors();
    const bool is_frozen = request->job().tensors(i).frozen();
    place->set_weight_offset(kTensorBytes * i);
    place->set_gradient_offset(kTensorBytes * i);
    place->set_first_bucket(is_frozen ? -1 : bucket);
    place->set_last_bucket(is_frozen ? -1 : bucket++);
  }
  reply->set_num_buckets(num_buckets_);
  reply->set_weights_bytes(weights_.size_bytes());
  reply->set_gradients_bytes(gradients_.size_bytes());
  reply->set_initial_bytes(initial_.size_bytes());
  return ToGrpc(SendSegments());
}

grpc::Status FakeDaemon::Begin(grpc::ServerContext*, const v1::BeginRequest*,
                               v1::BeginReply* reply) {
  const int number = ++num_begun_;
  if (number <= script_.deaths_in_begin) {
    if (!script_.comes_back) shutdown(listener_.get(), SHUT_RDWR);
    HangUp();
    return grpc::Status::CANCELLED;  // which nobody hears
  }
  if (script_.on_begin) {
    const absl::Status status = script_.on_begin(*this, number);
    if (!status.ok()) return ToGrpc(status);
  }
  *reply = script_.begin;
  if (script_.in_begin) script_.in_begin(*this, *reply);
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::Detach(grpc::ServerContext* context,
                                const v1::DetachRequest*, v1::DetachReply*) {
  Stay(context);
  ++num_detached_;
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::Close(grpc::ServerContext* context,
                               const v1::CloseRequest*, v1::CloseReply*) {
  Stay(context);
  if (script_.records_close) area().closed = 1;
  if (script_.dies_in_close) {
    HangUp();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed");
  }
  ++num_closed_;
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::GetStats(grpc::ServerContext* context,
                                  const v1::GetStatsRequest*,
                                  v1::GetStatsReply* reply) {
  Stay(context);
  reply->set_json(script_.stats);
  return grpc::Status::OK;
}

uint64_t FakeDaemon::pushed(int bucket) {
  return at<proto::Word>(layout_.pushed_offset)[bucket].load();
}

uint64_t FakeDaemon::step_input() {
  return at<proto::WorkerArea>(layout_.worker_area_offset)->step_input.load();
}

std::string FakeDaemon::cursor() {
  const auto* area = at<proto::WorkerArea>(layout_.worker_area_offset);
  return std::string(at<char>(layout_.cursor_offset), area->cursor_bytes);
}

double FakeDaemon::lr() {
  return at<proto::GroupValues>(layout_.groups_offset)->lr;
}

void FakeDaemon::AwaitPushed(uint64_t word) {
  // Doorbells come as bytes; poll() is enough of an event loop here.
  const auto is_pushed = [&] {
    for (int b = 0; b < num_buckets_; ++b) {
      if (pushed(b) != word) return false;
    }
    return step_input() == word;
  };
  while (!is_pushed()) {
    pollfd readable{handle_.get(), POLLIN, 0};
    poll(&readable, 1, 1000);
    std::byte bell[8];
    ipc::Packet packet;
    ipc::ReceivePacket(handle_.get(), bell, &packet).status().IgnoreError();
  }
}

void FakeDaemon::Wake() {
  area().wake.fetch_add(1);
  base::FutexWake(&area().wake, 64, base::FutexScope::kShared);
}

void FakeDaemon::Open(uint64_t word) {
  area().open = word;
  Wake();
}

double FakeDaemon::load() {
  return at<proto::GroupValues>(layout_.groups_offset)->load;
}

void FakeDaemon::Commit(uint64_t word, bool open_next,
                        proto::StepOutcome outcome) {
  proto::StepRecord& record = area().records[proto::StepOf(word) & 1];
  record.outcome = outcome;
  record.weight_version = proto::StepOf(word);
  record.grad_norm = 2;
  record.word = word;
  const std::string cursor =
      "rank 0's of " + std::to_string(proto::StepOf(word));
  std::memcpy(at<char>(layout_.rank0_cursor_offset), cursor.data(),
              cursor.size());
  area().rank0_cursor_bytes = cursor.size();
  area().rank0_cursor_word = word;
  area().committed = word;
  if (open_next) area().open = word + 1;
  Wake();
}

void FakeDaemon::Publish(uint64_t word) {
  for (int b = 0; b < num_buckets_; ++b) {
    at<proto::Word>(layout_.published_offset)[b] = word;
  }
  Wake();
}

void FakeDaemon::Fail(absl::StatusCode code, bool is_fatal, uint64_t word,
                      std::string_view text) {
  ++area().failure;
  area().failure_code = static_cast<int>(code);
  area().failure_fatal = is_fatal;
  area().failure_word = word;
  std::memcpy(area().failure_text, text.data(), text.size());
  area().failure_text[text.size()] = '\0';
  ++area().failure;
  Wake();
}

void FakeDaemon::HangUp() {
  base::MutexLock lock(&mutex_);
  handle_.Reset();
  shutdown(control_end_.get(), SHUT_RDWR);
}

}  // namespace ballast::worker
