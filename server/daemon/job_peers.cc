#include "server/daemon/job_peers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/collective/parts.h"

namespace ballast::daemon {
namespace {

using metrics::Family;

// How often links are looked at, and other nodes are told.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(500);
// Of what other nodes say; it goes into texts.
constexpr size_t kMaxNoteBytes = 300;

}  // namespace

JobPeers::JobPeers(const Parts& parts, LinksRequest request)
    : parts_(parts), request_(std::move(request)), notes_(num_nodes()) {}

JobPeers::~JobPeers() { Stop(); }

void JobPeers::Open() {
  opening_ = parts_.plane->Open(
      request_, [this](absl::StatusOr<std::unique_ptr<JobLinks>> links) {
        OnLinks(std::move(links));
      });
}

void JobPeers::Stop() {
  is_stopped_ = true;
  opening_.reset();
  parts_.executor->Cancel(std::exchange(watch_, 0));
}

void JobPeers::GiveUp(const absl::Status& why) {
  if (opening_ == nullptr) return;
  opening_->GiveUp(absl::IsUnavailable(why) ? absl::AbortedError(why.message())
                                            : why);
}

void JobPeers::OnLinks(absl::StatusOr<std::unique_ptr<JobLinks>> links) {
  opening_.reset();
  if (!links.ok()) return parts_.host->OnPeersLost(links.status());
  links_ = *std::move(links);
  MakeTransport();
  links_->peer_link()->SetObserver(this);
  ArmWatch();
  parts_.host->OnLinked();
}

void JobPeers::MakeTransport() {
  TimedTransport::Histograms histograms = {
      {collective::kReducePhase, nullptr},
      {collective::kPublishPhase, nullptr}};
  if (parts_.metrics != nullptr) {
    histograms[collective::kReducePhase] =
        parts_.metrics->histogram(Family::kExchangeDuration, {"reduce"});
    histograms[collective::kPublishPhase] =
        parts_.metrics->histogram(Family::kExchangeDuration, {"publish"});
  }
  transport_ = std::make_unique<TimedTransport>(
      links_->transport(), parts_.clock, std::move(histograms));
  pulls_ = std::make_unique<transport::Pulls>(
      transport::Pulls::Parts{.transport = transport_.get(),
                              .executor = parts_.executor,
                              .frames = this,
                              .job_key = parts_.job_key});
}

v1::PeerFrame JobPeers::MakeFrame() const {
  v1::PeerFrame frame;
  frame.set_job(request_.job);
  frame.set_from(request_.node.value());
  frame.set_incarnation(request_.incarnation.value());
  return frame;
}

absl::Status JobPeers::SendPull(NodeRank to, const v1::Pull& pull) {
  v1::PeerFrame frame = MakeFrame();
  *frame.mutable_pull() = pull;
  return links_->peer_link()->Send(to, frame.SerializeAsString());
}

void JobPeers::Send(NodeRank to, const v1::PeerFrame& frame) {
  if (links_ == nullptr) return;
  // Whoever sends repeats what has no answer, and Watch sees why it has none.
  links_->peer_link()->Send(to, frame.SerializeAsString()).IgnoreError();
}

void JobPeers::OnFrame(NodeRank from, std::string frame) {
  v1::PeerFrame parsed;
  if (from.value() < 0 || from.value() >= num_nodes() ||
      !parsed.ParseFromString(frame) || !IsOfTheseLinks(from, parsed)) {
    ++dropped_frames_;
    return;
  }
  if (!parsed.has_note() && !parsed.has_pull()) {
    return parts_.host->OnPeerFrame(from, parsed);
  }
  if (parsed.job() != request_.job) return;
  if (parsed.has_pull()) return pulls_->OnFrame(from, parsed.pull());
  notes_[from.value()] = parsed.note().waiting_for().substr(0, kMaxNoteBytes);
  if (parsed.note().has_closed()) {
    parts_.host->OnPeerClosed(parsed.note().closed());
  }
}

bool JobPeers::IsOfTheseLinks(NodeRank from, const v1::PeerFrame& frame) const {
  if (is_stopped_ || links_ == nullptr) return false;
  const uint64_t known = links_->IncarnationOf(from).value();
  return known == 0 || known == frame.incarnation();
}

void JobPeers::ArmWatch() {
  watch_ = parts_.executor->PostAfter(kWatchInterval, [this] {
    watch_ = 0;
    Watch();
  });
}

// I23: a node that is gone is missed, whether or not anything waits for it just
// now.
void JobPeers::Watch() {
  int num_ready = 1;  // this one
  for (int n = 0; n < num_nodes(); ++n) {
    absl::Status why;
    if (NodeRank(n) == request_.node) continue;
    const PeerState state = StateOf(n, &why);
    if (state == PeerState::kFailed) return parts_.host->OnLinkLost(why);
    num_ready += state == PeerState::kReady;
  }
  TellNote();
  ArmWatch();
  if (num_ready == num_nodes()) parts_.host->OnAllLinked();
}

void JobPeers::TellNow() {
  if (links_ != nullptr && !is_stopped_) TellNote();
}

void JobPeers::TellNote() {
  std::string note = parts_.host->OwnWaitingFor().substr(0, kMaxNoteBytes);
  const std::optional<v1::EarlyClose> closed = parts_.host->OwnEarlyClose();
  if (note.empty() && told_note_.empty() && !closed.has_value()) return;
  told_note_ = note;
  v1::PeerFrame frame = MakeFrame();
  frame.mutable_note()->set_waiting_for(std::move(note));
  if (closed.has_value()) *frame.mutable_note()->mutable_closed() = *closed;
  for (int n = 0; n < num_nodes(); ++n) {
    if (NodeRank(n) != request_.node) Send(NodeRank(n), frame);
  }
}

std::string JobPeers::WaitingFor() const {
  if (opening_ != nullptr) return opening_->WaitingFor();
  std::vector<std::string> waiting;
  for (size_t n = 0; n < notes_.size(); ++n) {
    if (!notes_[n].empty()) {
      waiting.push_back(absl::StrCat("node ", n, ": ", notes_[n]));
    }
  }
  return absl::StrJoin(waiting, "; ");
}

int JobPeers::Count(PeerState state) const {
  int count = 0;
  absl::Status why;
  for (int n = 0; links_ != nullptr && n < num_nodes(); ++n) {
    count += NodeRank(n) != request_.node && StateOf(n, &why) == state;
  }
  return count;
}

std::vector<v1::PeerNode> JobPeers::Nodes() const {
  std::vector<v1::PeerNode> nodes(num_nodes());
  for (int n = 0; n < num_nodes(); ++n) {
    absl::Status why;
    nodes[n].set_node(n);
    nodes[n].set_waiting_for(notes_[n]);
    if (NodeRank(n) == request_.node) {
      nodes[n].set_state("self");
      nodes[n].set_waiting_for(parts_.host->OwnWaitingFor());
    } else if (links_ == nullptr) {
      nodes[n].set_state("absent");
    } else {
      nodes[n].set_state(std::string(Name(StateOf(n, &why))));
    }
  }
  return nodes;
}

}  // namespace ballast::daemon
