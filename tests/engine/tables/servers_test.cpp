// Tables on servers: the same rows as a table of one host, for any number of servers.

#include <random>
#include <thread>

#include "paceline/engine/store/file_store.h"
#include "paceline/engine/tables/servers/remote_rows.h"
#include "paceline/engine/tables/servers/row_server.h"
#include "paceline/engine/tables/tables.h"

#include "tests/engine/rpc/job.h"
#include "tests/engine/tables/table_job.h"

namespace paceline::tables::servers_tests {
namespace {

using namespace testing_job;
using rpc::testing_job::Job;

// A job with servers and workers within this process; each is a host of its own.
class Servers : public testing::Test {
 protected:
  std::vector<std::string> start(int count) {
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) {
      auto& server = servers_.emplace_back(std::make_unique<RowServer>());
      names.push_back("server" + std::to_string(servers_.size() - 1));
      rpc::JoinOptions options = job_.options();
      options.host = names.back();
      options.prepare = [&server](rpc::Workers& self) { server->serve(self); };
      joined_.push_back(job_.join(names.back(), options));
    }
    return names;
  }
  std::unique_ptr<rpc::Workers> worker(const std::string& name) {
    rpc::JoinOptions options = job_.options();
    options.host = name;
    return job_.join(name, options);
  }
  static std::vector<Id> some_ids(int seed, int count) {
    std::mt19937_64 random(seed);
    std::vector<Id> ids(count);
    for (auto& id : ids) id = static_cast<Id>(random() % 40) * 1'000'003;
    return ids;
  }
  static void push_some(Rows& rows, int first, int last) {
    for (int i = first; i < last; ++i) {
      const auto ids = some_ids(i, 30);
      std::vector<float> gradients(ids.size() * rows.width());
      for (std::size_t j = 0; j < gradients.size(); ++j)
        gradients[j] = static_cast<float>((j * 7 + i) % 13) - 6;
      rows.push(ids, gradients);
    }
  }

  Job job_;
  std::vector<std::unique_ptr<RowServer>> servers_;
  std::vector<std::unique_ptr<rpc::Workers>> joined_;
};

RowOptions options_of(std::uint32_t width) {
  return {.width = width, .optimizer = Adagrad{.lr = 0.1}, .capacity = 1'000, .seed = 5};
}

TEST_F(Servers, AnyNumberOfThemHasTheBitsOfOneHost) {
  const Memories memories(options_of(6));
  const auto local = open(memories.first(), "local");
  push_some(*local, 0, 10);
  const auto ids = some_ids(99, 60);
  int job = 0;
  for (const int count : {1, 2, 3}) {
    servers_.clear();
    joined_.clear();
    const auto names = start(count);
    const auto workers = worker("w" + std::to_string(job++));
    Tables tables(*workers);
    const auto rows = tables.open_rows("t", options_of(6), {.servers = names});
    push_some(*rows, 0, 10);
    EXPECT_EQ(pull(*rows, ids), pull(*local, ids)) << count;
    EXPECT_EQ(rows->stats().rows, local->stats().rows);
    EXPECT_EQ(rows->cut().rows, local->cut().rows);
    rows->set_lr(0.5);
    EXPECT_EQ(rows->lr(), 0.5);
    for (auto& one : joined_) one->leave();
  }
}

TEST_F(Servers, ACutOfTwoIsRestoredOnThree) {
  const auto two = start(2);
  const auto workers = worker("w");
  Tables tables(*workers);
  const auto rows = tables.open_rows("t", options_of(3), {.servers = two});
  push_some(*rows, 0, 10);
  const TableCut cut = rows->cut();
  const auto three = start(3);
  const auto others = tables.open_rows("t", options_of(3), {.servers = three});
  others->restore(cut);
  push_some(*others, 10, 20);
  push_some(*rows, 10, 20);
  const auto ids = some_ids(99, 60);
  EXPECT_EQ(pull(*others, ids), pull(*rows, ids));
  expect_error(ErrorCode::kAborted, {"has rows already"}, [&] { others->restore(cut); });
}

TEST_F(Servers, APushIsAppliedOnce) {
  const auto names = start(2);
  const auto workers = worker("w");
  Tables tables(*workers);
  const auto rows = tables.open_rows("t", adding_rows(1), {.servers = names});
  std::vector<Id> ids(50);
  for (Id i = 0; i < 50; ++i) ids[i] = i;
  const std::vector<float> ones(50, 1);
  rows->push(ids, ones, 3);
  rows->push(ids, ones, 3);
  rows->push(ids, ones, 2);
  EXPECT_EQ(pull(*rows, ids), ones);
  EXPECT_EQ(rows->stats().duplicate_pushes, 4U);  // two pushes, two servers
  EXPECT_EQ(rows->sequence(), 3U);
  rows->push(ids, ones);  // a new push, after the repetition of an old one
  EXPECT_EQ(pull(*rows, ids), std::vector<float>(50, 2));
  EXPECT_EQ(rows->sequence(), 4U);
}

TEST_F(Servers, ARepeatedPushOfASynchronousTableIsAppliedOnce) {
  const auto names = start(2);
  const auto workers = worker("w");
  Tables tables(*workers);
  RowOptions options = adding_rows(1);
  options.consistency = Consistency::synchronous();
  const auto rows = tables.open_rows("t", options, {.servers = names});
  const std::vector<Id> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<float> ones(ids.size(), 1);
  rows->push(ids, ones, 1);
  rows->push(ids, ones, 1);
  rows->tick();
  EXPECT_EQ(pull(*rows, ids), ones);
  rows->push(ids, ones, 1);
  rows->push(ids, ones);
  rows->tick();
  EXPECT_EQ(pull(*rows, ids), std::vector<float>(ids.size(), 2));
  EXPECT_EQ(rows->stats().duplicate_pushes, 4U);  // two pushes, two servers
}

TEST_F(Servers, AWrongOwnerRefuses) {
  const auto names = start(2);
  const auto workers = worker("w");
  OpenRows request = request_of("t", adding_rows(1));
  request.timeout_ms = 10'000;
  request.epoch = 4;
  request.num_servers = 2;
  const auto first = workers->create<ServedRows>(names[0], request);
  Id other = 0;
  while (slot_of(other) < kNumSlots / 2) ++other;
  const std::vector<Id> ids = {other};
  const std::vector<float> one = {1};
  const auto push = [&](std::uint64_t epoch) {
    first.call<&ServedRows::push>({.epoch = epoch, .sequence = 1, .ids = ids, .gradients = one})
        .get();
  };
  expect_error(ErrorCode::kAborted, {"belongs to another server; no row was changed"},
               [&] { push(4); });
  expect_error(ErrorCode::kAborted, {"the request has slot map 5, but this server has slot map 4"},
               [&] { push(5); });
  // Another map: the server would have to give rows away.
  ++request.epoch;
  request.num_servers = 1;
  expect_error(ErrorCode::kInvalid, {"start the job again with a saved table"}, [&] {
    workers->create<ServedRows>(names[0], request).call<&ServedRows::state>().get();
  });
}

TEST_F(Servers, BoundedWorkersWaitForEachOther) {
  const auto names = start(2);
  RowOptions options = adding_rows(2);
  options.consistency = Consistency::bounded(1);
  std::vector<std::unique_ptr<rpc::Workers>> workers;
  std::vector<std::unique_ptr<Tables>> tables;
  std::vector<std::unique_ptr<Rows>> rows;
  for (int i = 0; i < 2; ++i) {
    workers.push_back(worker("w" + std::to_string(i)));
    tables.push_back(std::make_unique<Tables>(*workers.back()));
    rows.push_back(tables.back()->open_rows("t", options, {.servers = names}));
  }
  std::vector<Id> ids(20);
  for (Id i = 0; i < 20; ++i) ids[i] = i;
  std::vector<std::jthread> threads;
  for (int w = 0; w < 2; ++w) {
    threads.emplace_back([&, w] {
      std::vector<float> gradients(2 * ids.size());
      for (std::size_t i = 0; i < ids.size(); ++i) gradients[2 * i + w] = 1;
      for (int clock = 0; clock < 20; ++clock) {
        const auto values = pull(*rows[w], ids);
        for (std::size_t i = 0; i < values.size(); ++i)
          EXPECT_GE(values[i], static_cast<int>(i % 2) == w ? clock : clock - 1);
        rows[w]->push(ids, gradients);
        rows[w]->tick();
      }
      EXPECT_LE(rows[w]->stats().largest_staleness, 1U);
      rows[w]->leave();  // the other one must not wait
    });
  }
}

// A tick that was counted is not counted again when it is repeated for the sake of another server.
TEST_F(Servers, CountATickOnce) {
  const auto names = start(1);
  const auto workers = worker("w");
  OpenRows request = request_of("t", adding_rows(1));
  request.timeout_ms = 10'000;
  const auto rows = workers->create<ServedRows>(names[0], request);
  for (const std::uint64_t number : {1, 1, 2, 2, 1}) rows.call<&ServedRows::tick>({number}).get();
  EXPECT_EQ(rows.call<&ServedRows::state>().get().clock, 2U);
}

TEST_F(Servers, ARestorationThatWasInterruptedBeginsAgain) {
  const Memories memories(adding_rows(1));
  const auto local = open(memories.first(), "local");
  const std::vector<Id> ids = {1, 2, 3, 4};
  local->push(ids, std::vector<float>{1, 2, 3, 4});
  const TableCut cut = local->cut();
  const auto names = start(1);
  const auto workers = worker("w");
  OpenRows request = request_of("t", adding_rows(1));
  request.timeout_ms = 10'000;
  const auto rows = workers->create<ServedRows>(names[0], request);
  const auto restore = [&](std::uint64_t begin) {
    rows.call<&ServedRows::restore>(part_of(cut, begin, 2)).get();
  };
  expect_error(ErrorCode::kAborted, {"the part from position 2 on arrived after 0 ids"},
               [&] { restore(2); });
  restore(0);
  restore(0);
  restore(2);
  EXPECT_EQ(rows.call<&ServedRows::pull>({.epoch = request.epoch, .ids = ids}).get().values,
            pull(*local, ids));
}

TEST_F(Servers, TablesMayBeOnDifferentOnes) {
  const auto names = start(2);
  const auto one = worker("one"), two = worker("two");
  Tables first(*one), second(*two);
  const auto users = first.open_rows("user", adding_rows(1), {.servers = names});
  const auto items = first.open_rows("item", adding_rows(1), {.servers = {names[1]}});
  const std::vector<Id> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<float> ones(ids.size(), 1);
  users->push(ids, ones);
  EXPECT_EQ(pull(*second.open_rows("user", adding_rows(1), {.servers = names}), ids), ones);
  EXPECT_EQ(pull(*items, ids), std::vector<float>(ids.size(), 0));
}

TEST_F(Servers, RowsMayTravelAsBfloat16) {
  const auto names = start(2);
  const auto workers = worker("w");
  Tables tables(*workers);
  const auto rows = tables.open_rows("t", adding_rows(2), {.servers = names, .as_bfloat16 = true});
  rows->push(std::vector<Id>{1, 2, 1}, std::vector<float>{1, 2, 3, 4, 256, 1.0078125F});
  // 257 is not a bfloat16: the sum is rounded when it is sent, and the row when it is pulled.
  EXPECT_EQ(pull(*rows, {1, 2}), (std::vector<float>{256, 3, 3, 4}));
}

TEST_F(Servers, BadInputIsRefusedBeforeItIsSent) {
  const auto names = start(1);
  const auto workers = worker("w");
  Tables tables(*workers);
  const auto rows = tables.open_rows("t", adding_rows(2), {.servers = names});
  expect_error(ErrorCode::kInvalid, {"worker w: push: table 't' has rows of 2 floats"},
               [&] { rows->push(std::vector<Id>{1}, std::vector<float>{1}); });
  expect_error(ErrorCode::kInvalid, {"the gradient of row 1 (place 0 of the batch) is not finite"},
               [&] {
                 rows->push(std::vector<Id>{1}, std::vector<float>{NAN, 1});
               });
  expect_error(ErrorCode::kInvalid, {"a table needs 1 to 1024 servers with different names"}, [&] {
    tables.open_rows("u", adding_rows(2), {.servers = {"server0", "server0"}});
  });
  expect_error(ErrorCode::kInvalid, {"table 't' is open with other options: width is 3"},
               [&] { tables.open_rows("t", adding_rows(3), {.servers = names}); });
  rows->leave();
  expect_error(ErrorCode::kInvalid, {"worker w: pull: this worker has left table 't'"},
               [&] { pull(*rows, {1}); });
}

TEST(SlotMaps, HaveANewEpochForOtherServers) {
  MemoryStore store;
  EXPECT_EQ(SlotMap::agree(store, "t", {"a", "b"}).epoch, 1U);
  EXPECT_EQ(SlotMap::agree(store, "t", {"a", "b"}).epoch, 1U);
  EXPECT_EQ(SlotMap::agree(store, "t", {"a", "b", "c"}).epoch, 2U);
  const SlotMap map = SlotMap::agree(store, "t", {"a", "b"});
  EXPECT_EQ(map.epoch, 3U);
  EXPECT_EQ(SlotMap::agree(store, "u", {"b"}).epoch, 1U);  // a map of its own
  std::size_t first = 0;
  for (Id id = 0; id < 10'000; ++id) first += map.owner(id) == 0 ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(first), 5'000, 300);
}

}  // namespace
}  // namespace paceline::tables::servers_tests
