// Answers other nodes that ask for published weights of this one (delta mode):
//
//   kPullChunk   one chunk: its Entry (checksum and version, 16 bytes), then
//                its bits, piece after piece without gaps
//   kPullMarks   the Entry of each chunk of this node's own shard of a bucket
//
// A chunk is answered for in the version that is asked for, and no other:
//
//   stage      this node's version
//              older          the same                          newer
//   quiet      waits          bits have their checksum? sends   refuses
//                             else refuses
//   in work    waits          waits                             waits
//   damaged    refuses        refuses                           refuses
//
// So both versions around a step have an answer: of s - 1 until the task that
// writes s is submitted, of s once it is done; and nobody waits for a chunk
// that itself waits to be healed, so that no two nodes wait for each other.
// What is sent is a copy, made and checked on the control thread while the
// chunk is quiet: tens of microseconds, only when something was damaged.
//
// Threading: control thread only.
// Ownership: copies live until they are sent, up to kMaxSending of them; who
// comes later waits, up to kMaxWaiting.
// Errors: keys are hostile input (I27); what they ask for and is not there is
// refused by name.
#ifndef SERVER_COLLECTIVE_CHUNK_SOURCE_H_
#define SERVER_COLLECTIVE_CHUNK_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/base/ids.h"
#include "server/collective/chunk_stages.h"
#include "server/collective/context.h"
#include "server/collective/published_chunks.h"
#include "server/transport/pulls.h"

namespace ballast::collective {

// Kinds of pulls, in this order of little-endian words on the wire.
inline constexpr uint32_t kPullChunk = 1;
inline constexpr uint32_t kPullMarks = 2;

class ChunkSource final : public transport::PullSource {
 public:
  static constexpr int kMaxSending = 8;
  static constexpr size_t kMaxWaiting = 1024;

  // Serves from now on. What it is given outlives it.
  ChunkSource(const Context* context, const ChunkStages* stages);
  ~ChunkSource() override;

  void OnPull(NodeRank from, const transport::PullKey& key,
              transport::PullReply reply) override;

  // Some chunk has come to another stage.
  void OnStages() {
    if (!waiting_.empty()) AnswerAll();
  }
  // Everybody is refused from now on; nothing is read any more.
  void Close();

  uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Request {
    transport::PullKey key;
    transport::PullReply reply;
  };
  struct Sending;

  void AnswerAll();
  // False: it has to wait.
  bool Answer(Request* request);
  absl::Status Check(const transport::PullKey& key) const;
  bool AnswerChunk(const ChunkId& id, Request* request);
  bool AnswerMarks(Request* request);
  void Send(std::unique_ptr<std::vector<std::byte>> copy, Request* request);

  const Context* const context_;
  const ChunkStages* const stages_;
  PublishedChunks* const published_;
  std::vector<Request> waiting_;
  int num_sending_ = 0;
  bool is_closed_ = false;
  uint64_t bytes_sent_ = 0;
  std::shared_ptr<int> alive_;  // weak in what is being sent
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CHUNK_SOURCE_H_
