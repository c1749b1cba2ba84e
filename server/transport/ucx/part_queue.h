// A queue of things that carry their own link: joining and leaving never
// allocates, and one thing is in a queue at most once.
//
//   struct Part { PartLink<Part> data; };
//   PartQueue<Part, &Part::data> queue;
//
// Threading: thread-compatible. What is queued must leave before it goes.
#ifndef SERVER_TRANSPORT_UCX_PART_QUEUE_H_
#define SERVER_TRANSPORT_UCX_PART_QUEUE_H_

namespace ballast::transport {

template <typename T>
struct PartLink {
  T* previous = nullptr;
  T* next = nullptr;
  bool is_queued = false;
};

template <typename T, PartLink<T> T::*kLink>
class PartQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  T* front() const { return first_; }

  // Does nothing if `item` is queued.
  void Push(T* item) {
    PartLink<T>& link = item->*kLink;
    if (link.is_queued) return;
    link = {.previous = last_, .next = nullptr, .is_queued = true};
    (last_ == nullptr ? first_ : (last_->*kLink).next) = item;
    last_ = item;
  }

  // Does nothing if `item` is not queued.
  void Remove(T* item) {
    PartLink<T>& link = item->*kLink;
    if (!link.is_queued) return;
    (link.previous == nullptr ? first_ : (link.previous->*kLink).next) =
        link.next;
    (link.next == nullptr ? last_ : (link.next->*kLink).previous) =
        link.previous;
    link = {};
  }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_PART_QUEUE_H_
