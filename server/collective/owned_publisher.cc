#include "server/collective/owned_publisher.h"

#include <utility>

#include "absl/status/status.h"

namespace ballast::collective {

OwnedPublisher::OwnedPublisher(Context* context, OwnedWeights* owned,
                               BucketId bucket)
    : context_(context),
      owned_(owned),
      bucket_(bucket),
      pipeline_(context, [this] { Report(); }) {
  const size_t num_chunks =
      owned->codes() ? owned->num_chunks(bucket, owned->self()) : 0;
  std::vector<BatchPipeline::Work> tasks;
  for (size_t i = 0; i < num_chunks; ++i) {
    errors_.emplace_back(owned->OwnRuns(bucket, i).size());
    tasks.push_back({[this, i](int) {
      owned_->EncodeChunk(pipeline_.step(), bucket_, i, errors_[i]);
      return absl::OkStatus();
    }});
  }
  pipeline_.AddLocal(std::move(tasks));
}

void OwnedPublisher::Report() {
  if (owned_->codes()) owned_->SetCoded(bucket_);
  context_->observer->OnBucketPublished(bucket_);
}

void OwnedPublisher::AddErrors(PathErrors* sum) const {
  if (context_->group() > 0) return;  // the first group tells the same
  for (size_t i = 0; i < errors_.size(); ++i) {
    context_->AddErrors(layout::Path::kWeights, owned_->OwnRuns(bucket_, i),
                        errors_[i], sum);
  }
}

}  // namespace ballast::collective
