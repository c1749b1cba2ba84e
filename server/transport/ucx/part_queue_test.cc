#include "server/transport/ucx/part_queue.h"

#include <vector>

#include "gtest/gtest.h"

namespace ballast::transport {
namespace {

struct Item {
  int value;
  PartLink<Item> link;
};
using Queue = PartQueue<Item, &Item::link>;

std::vector<int> Drained(Queue* queue) {
  std::vector<int> values;
  while (Item* const item = queue->front()) {
    values.push_back(item->value);
    queue->Remove(item);
  }
  return values;
}

TEST(PartQueueTest, KeepsTheOrderAndEachOnce) {
  Item items[] = {{1, {}}, {2, {}}, {3, {}}};
  Queue queue;
  for (Item& item : items) queue.Push(&item);
  queue.Push(&items[0]);
  EXPECT_EQ(Drained(&queue), (std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(queue.empty());
}

TEST(PartQueueTest, LeavesFromAnyPlace) {
  for (int leaver = 0; leaver < 3; ++leaver) {
    Item items[] = {{0, {}}, {1, {}}, {2, {}}};
    Queue queue;
    for (Item& item : items) queue.Push(&item);
    queue.Remove(&items[leaver]);
    queue.Remove(&items[leaver]);
    queue.Push(&items[leaver]);
    std::vector<int> expected;
    for (int i = 0; i < 3; ++i) {
      if (i != leaver) expected.push_back(i);
    }
    expected.push_back(leaver);
    EXPECT_EQ(Drained(&queue), expected);
  }
}

}  // namespace
}  // namespace ballast::transport
