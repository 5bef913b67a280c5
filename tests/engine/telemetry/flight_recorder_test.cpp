// The contents of a rank's ring, whatever happens to the rank; and that a reader takes nothing for
// granted.

#include "paceline/engine/telemetry/flight_recorder.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/telemetry/flight_file.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;
using testing::HasSubstr;

class FlightRecorderTest : public testing::Test {
 protected:
  FlightOptions options(int rank = 0, bool keep = true) const {
    return {.directory = directory_.path(), .rank = rank, .world_size = 4, .keep = keep};
  }
  std::string path(int rank = 0) const { return directory_.file(flight_file_name(rank)); }
  Flight read() const { return read_flight(path()); }

  std::vector<std::byte> bytes_of_three_operations() {
    {
      FlightRecorder recorder(options());
      recorder.add_group("world", 77, 0, 4, 0);
      for (std::uint32_t i = 1; i <= 3; ++i) recorder.finish(recorder.start(call(), i), {});
    }
    std::ifstream file(path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    return {begin, begin + text.size()};
  }

  static FlightCall call() {
    return {.op = 1,
            .reduce_op = 2,
            .dtype = Dtype::kInt32,
            .asynchronous = false,
            .group = 0,
            .peer = 3,
            .tag = 9,
            .count = 1'000'000'000'000,
            .group_hash = 77};
  }

  const FreshDirectory directory_;
};

TEST_F(FlightRecorderTest, keeps_every_field_of_an_operation) {
  FlightRecorder recorder(options(2));
  EXPECT_EQ(recorder.add_group("world", 77, 2, 4, 5), 0u);
  EXPECT_EQ(recorder.add_group("world.0", 78, 0, 2, 5), 1u);
  recorder.finish(recorder.start(call(), 41), {});
  const auto queued = recorder.enter(call());
  const auto failed = recorder.start(call(), 42);
  recorder.finish(failed, ErrorCode::kTimeout);
  recorder.note_failure("the first");
  recorder.note_failure("the second");

  const Flight flight = read_flight(path(2));
  EXPECT_EQ(flight.rank, 2);
  EXPECT_EQ(flight.world_size, 4);
  EXPECT_EQ(flight.pid, getpid());
  EXPECT_EQ(flight.process, FlightProcess::kRunning);
  EXPECT_EQ(flight.end, FlightEnd::kOpen);
  EXPECT_EQ(flight.failure, "the first");
  EXPECT_GE(flight.now, flight.opened);
  ASSERT_EQ(flight.groups.size(), 2u);
  EXPECT_EQ(flight.groups[1].name, "world.0");
  EXPECT_EQ(flight.groups[1].world_size, 2);
  EXPECT_EQ(flight.groups[1].generation, 5u);
  ASSERT_EQ(flight.operations.size(), 3u);
  const FlightOperation& done = flight.operations[0];
  EXPECT_EQ(done.sequence, 41u);
  EXPECT_EQ(done.state, FlightState::kDone);
  EXPECT_EQ(done.call.op, 1);
  EXPECT_EQ(done.call.reduce_op, 2);
  EXPECT_EQ(done.call.dtype, Dtype::kInt32);
  EXPECT_EQ(done.call.peer, 3);
  EXPECT_EQ(done.call.tag, 9u);
  EXPECT_EQ(done.call.count, 1'000'000'000'000u);
  EXPECT_EQ(done.call.group_hash, 77u);
  EXPECT_EQ(done.thread, static_cast<std::uint32_t>(gettid()));
  EXPECT_LE(flight.opened, done.entered);
  EXPECT_LE(done.entered, done.ended);
  EXPECT_LE(done.ended, flight.now);
  EXPECT_EQ(flight.operations[1].state, FlightState::kEntered);
  EXPECT_EQ(flight.operations[1].started, 0u);
  EXPECT_EQ(flight.operations[2].state, FlightState::kFailed);
  EXPECT_EQ(flight.operations[2].error, ErrorCode::kTimeout);
  recorder.start(queued, 43);
  EXPECT_EQ(read_flight(path(2)).operations[1].sequence, 43u);
}

TEST_F(FlightRecorderTest, keeps_the_last_thousand_of_a_process_that_is_killed) {
  for (int round = 0; round < 10; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      FlightRecorder recorder(options());
      for (std::uint32_t i = 1;; ++i) {
        recorder.finish(recorder.start(call(), i), {});
        if (i == 3000) (void)!write(ends[1], "x", 1);
      }
    }
    char ready;
    ASSERT_EQ(::read(ends[0], &ready, 1), 1);
    std::this_thread::sleep_for(std::chrono::microseconds(round * 37));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ends[0]);
    close(ends[1]);

    const Flight flight = read();
    EXPECT_EQ(flight.process, FlightProcess::kGone);
    EXPECT_EQ(flight.end, FlightEnd::kOpen);
    EXPECT_LE(flight.num_torn, 1u);
    EXPECT_GE(flight.operations.size(), flight::kNumOperations - 1);
    EXPECT_GE(flight.num_begun, 3000u);
    for (std::size_t i = 0; i < flight.operations.size(); ++i) {
      const FlightOperation& operation = flight.operations[i];
      EXPECT_EQ(operation.sequence, operation.id);
      EXPECT_EQ(operation.id, flight.operations[0].id + i);
      EXPECT_TRUE(operation.state == FlightState::kDone || i + 1 == flight.operations.size());
    }
  }
}

TEST_F(FlightRecorderTest, nothing_stays_after_a_clean_end_and_everything_after_a_failure) {
  const std::string inside = directory_.file("a/b");
  auto wanted = options(0, false);
  wanted.directory = inside;
  {
    FlightRecorder recorder(wanted);
    recorder.finish(recorder.start(call(), 1), {});
    EXPECT_TRUE(std::filesystem::exists(recorder.path()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(inside));
  {
    FlightRecorder recorder(wanted);
    recorder.note_failure("no luck");
  }
  EXPECT_EQ(read_flight(inside + "/rank-000.flight").end, FlightEnd::kFailed);
  try {
    FlightRecorder recorder(wanted);
    throw std::runtime_error("a bad sample");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(read_flight(inside + "/rank-000.flight").end, FlightEnd::kException);
  wanted.keep = true;
  { FlightRecorder recorder(wanted); }
  EXPECT_EQ(read_flight(inside + "/rank-000.flight").end, FlightEnd::kInOrder);
}

TEST_F(FlightRecorderTest, a_newer_group_of_the_rank_takes_the_file_and_keeps_it) {
  auto older = std::make_unique<FlightRecorder>(options(0, false));
  FlightRecorder newer(options(0, false));
  const auto ticket = older->start(call(), 1);
  newer.start(call(), 2);
  older->finish(ticket, {});
  older.reset();
  const Flight flight = read();
  ASSERT_EQ(flight.operations.size(), 1u);
  EXPECT_EQ(flight.operations[0].sequence, 2u);
}

TEST_F(FlightRecorderTest, an_operation_that_a_thousand_others_passed_leaves_their_records_alone) {
  FlightRecorder recorder(options());
  const auto slow = recorder.start(call(), 1);
  for (std::uint32_t i = 2; i < 2 + flight::kNumOperations; ++i) {
    recorder.finish(recorder.start(call(), i), {});
  }
  recorder.finish(slow, ErrorCode::kTimeout);
  const Flight flight = read();
  EXPECT_EQ(flight.num_dropped, 1u);
  EXPECT_EQ(flight.operations.size(), flight::kNumOperations);
  for (const auto& operation : flight.operations) EXPECT_EQ(operation.state, FlightState::kDone);
}

TEST_F(FlightRecorderTest, threads_record_side_by_side_and_a_reader_sees_whole_records) {
  constexpr int kThreads = 4;
  constexpr std::uint32_t kEach = 20'000;
  FlightRecorder recorder(options());
  std::vector<std::jthread> threads;
  std::atomic<int> running = kThreads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      FlightCall own = call();
      own.tag = static_cast<std::uint32_t>(thread);
      for (std::uint32_t i = 1; i <= kEach; ++i) {
        own.count = std::uint64_t{i} * 1000 + own.tag;
        recorder.finish(recorder.start(own, i), {});
      }
      --running;
    });
  }
  const auto require_whole = [&] {
    for (const auto& operation : read().operations) {
      ASSERT_EQ(operation.call.count,
                std::uint64_t{operation.sequence} * 1000 + operation.call.tag);
    }
  };
  while (running > 0) require_whole();
  threads.clear();
  require_whole();
  const Flight flight = read();
  EXPECT_EQ(flight.num_begun, kThreads * kEach);
  EXPECT_EQ(flight.num_torn, 0u);
  std::set<std::uint64_t> ids;
  for (const auto& operation : flight.operations) ids.insert(operation.id);
  EXPECT_EQ(ids.size(), flight.operations.size());
  EXPECT_GE(flight.operations.size(), flight::kNumOperations / 2);
}

TEST_F(FlightRecorderTest, groups_beyond_the_tables_room_replace_the_oldest) {
  FlightRecorder recorder(options());
  for (int i = 0; i < 100; ++i) {
    std::string name(1, 'g');
    name += std::to_string(i);
    name.append(i == 99 ? 200 : 0, 'x');
    recorder.add_group(name, 1, 0, 1, 0);
  }
  const Flight flight = read();
  ASSERT_EQ(flight.groups.size(), flight::kNumGroups);
  EXPECT_EQ(flight.groups.front().name, "g36");
  EXPECT_EQ(flight.groups.back().name.size(), flight::kNameBytes);
}

TEST_F(FlightRecorderTest, a_place_that_cannot_be_written_is_a_typed_error) {
  std::ofstream(directory_.file("file")) << "text";
  auto wanted = options();
  for (const std::string below : {"file", "file/deeper"}) {
    wanted.directory = directory_.file(below);
    try {
      FlightRecorder recorder(wanted);
      ADD_FAILURE() << below;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kSystem);
      EXPECT_THAT(error.what(), HasSubstr(wanted.directory));
    }
  }
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      FlightRecorder recorder(options());
    } catch (const Error& error) {
      _exit(std::string(error.what()).find("File too large") != std::string::npos ? 7 : 8);
    }
    _exit(9);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_FALSE(std::filesystem::exists(path()));
}

// ---- files of unknown origin

Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInvalid, "no error");
}

template <class T>
void put(std::vector<std::byte>& bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

std::size_t place_of(std::uint64_t id) {
  return offsetof(flight::File, operations) + id * sizeof(flight::Operation);
}

TEST_F(FlightRecorderTest, a_torn_record_is_counted_and_the_others_stand) {
  const auto good = bytes_of_three_operations();
  ASSERT_EQ(parse_flight(good, "x").operations.size(), 3u);
  auto being_written = good;
  put(being_written, place_of(2), std::uint64_t{2} << 8 | 3);
  auto half_copied = good;
  put(half_copied, place_of(2) + offsetof(flight::Operation, ended), std::uint64_t{12345});
  for (const auto& bytes : {being_written, half_copied}) {
    const Flight flight = parse_flight(bytes, "x");
    EXPECT_EQ(flight.num_torn, 1u);
    ASSERT_EQ(flight.operations.size(), 2u);
    EXPECT_EQ(flight.operations[1].sequence, 3u);
  }
}

TEST_F(FlightRecorderTest, a_file_of_another_kind_is_a_clear_error) {
  const auto good = bytes_of_three_operations();
  for (const std::size_t length : {0ul, 1ul, 11ul, 12ul, 4096ul, good.size() - 1}) {
    const Error error = error_of([&] { parse_flight(std::span(good).first(length), "cut"); });
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << length;
    EXPECT_THAT(error.what(), Says("flight.damaged", "cut"));
  }
  auto longer = good;
  longer.resize(good.size() + 1);
  EXPECT_EQ(error_of([&] { parse_flight(longer, "x"); }).code(), ErrorCode::kCorrupt);

  std::vector<std::byte> garbage(good.size());
  std::mt19937 random(1);
  for (auto& byte : garbage) byte = static_cast<std::byte>(random());
  EXPECT_EQ(error_of([&] { parse_flight(garbage, "x"); }).code(), ErrorCode::kCorrupt);

  auto newer = good;
  put(newer, offsetof(flight::Header, version), std::uint32_t{2});
  newer.resize(100);  // a newer version may also have another size
  const Error error = error_of([&] { parse_flight(newer, "new.flight"); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), Says("flight.other_version", "new.flight", 2, 1));
}

TEST_F(FlightRecorderTest, every_field_of_the_header_is_checked) {
  const auto good = bytes_of_three_operations();
  using flight::Header;
  for (const auto& [offset, value] : std::vector<std::pair<std::size_t, std::uint32_t>>{
           {offsetof(Header, num_operations), 1 << 30},
           {offsetof(Header, num_groups), 0},
           {offsetof(Header, rank), 4},
           {offsetof(Header, rank), 0x80000000},
           {offsetof(Header, world_size), 0},
           {offsetof(Header, world_size), 0x7fffffff},
           {offsetof(Header, pid), 0},
           {offsetof(Header, end), 4},
           {offsetof(Header, failure_length), 1025}}) {
    auto bad = good;
    put(bad, offset, value);
    EXPECT_EQ(error_of([&] { parse_flight(bad, "x"); }).code(), ErrorCode::kCorrupt) << offset;
  }
  auto group = good;
  put(group, offsetof(flight::File, groups) + offsetof(flight::Group, name_length), 97);
  EXPECT_EQ(error_of([&] { parse_flight(group, "x"); }).code(), ErrorCode::kCorrupt);
}

TEST_F(FlightRecorderTest, a_whole_record_that_no_recorder_writes_is_refused) {
  const auto good = bytes_of_three_operations();
  const auto with = [&](auto change) {
    flight::Operation record;
    auto bad = good;
    std::memcpy(&record, good.data() + place_of(1), sizeof record);
    change(record);
    record.check =
        flight::check_of(std::bit_cast<std::array<std::uint64_t, flight::kNumWords>>(record));
    std::memcpy(bad.data() + place_of(1), &record, sizeof record);
    return error_of([&] { parse_flight(bad, "x"); }).code();
  };
  EXPECT_EQ(with([](auto& r) { r.state = 0; }), ErrorCode::kCorrupt);
  EXPECT_EQ(with([](auto& r) { r.state = 5; }), ErrorCode::kCorrupt);
  EXPECT_EQ(with([](auto& r) { r.dtype = 10; }), ErrorCode::kCorrupt);
  EXPECT_EQ(with([](auto& r) { r.error = 8; }), ErrorCode::kCorrupt);
  EXPECT_EQ(with([](auto& r) { r.peer = -2; }), ErrorCode::kCorrupt);
  EXPECT_EQ(with([](auto& r) { r.stamp += 1 << 8; }), ErrorCode::kCorrupt);
  EXPECT_EQ(with([](auto& r) { r.stamp = 2; }), ErrorCode::kCorrupt);
}

TEST_F(FlightRecorderTest, bytes_changed_at_random_never_do_more_than_an_error) {
  const auto good = bytes_of_three_operations();
  std::mt19937 random(harness::random_seed());
  for (int round = 0; round < 3000; ++round) {
    auto bad = good;
    for (int change = 0; change < 4; ++change) {
      const std::size_t near = random() % 2 == 0 ? 2048 + 8192 + 400 : bad.size();
      bad[random() % near] = static_cast<std::byte>(random());
    }
    try {
      const Flight flight = parse_flight(bad, "x");
      for (const char c : flight.host + flight.failure)
        EXPECT_GE(static_cast<unsigned char>(c), 32);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kUnsupported);
    }
  }
}

TEST_F(FlightRecorderTest, texts_cannot_speak_to_a_terminal) {
  FlightRecorder recorder(options());
  recorder.add_group("a\x1b[2Jb\n", 1, 0, 1, 0);
  recorder.note_failure("no\x07\x7f");
  const Flight flight = read();
  EXPECT_EQ(flight.groups[0].name, "a?[2Jb?");
  EXPECT_EQ(flight.failure, "no??");
}

TEST_F(FlightRecorderTest, a_directory_is_read_as_far_as_it_can_be) {
  EXPECT_EQ(error_of([&] { read_flights(directory_.path()); }).code(), ErrorCode::kInvalid);
  EXPECT_EQ(error_of([&] { read_flights(directory_.file("none")); }).code(), ErrorCode::kSystem);
  const FlightRecorder two(options(2));
  const FlightRecorder zero(options(0));
  std::ofstream(path(1)) << "garbage";
  std::filesystem::copy_file(path(2), path(3));
  std::ofstream(directory_.file("rank-000.log")) << "a log";
  const FlightDirectory found = read_flights(directory_.path());
  ASSERT_EQ(found.flights.size(), 2u);
  EXPECT_EQ(found.flights[0].rank, 0);
  EXPECT_EQ(found.flights[1].rank, 2);
  ASSERT_EQ(found.problems.size(), 2u);
  EXPECT_THAT(found.problems[0], Says("flight.damaged", "rank-001.flight"));
  EXPECT_THAT(found.problems[1], Says("flight.written_by_another", 2));
}

TEST_F(FlightRecorderTest, files_that_an_earlier_job_left_are_told_from_the_newest) {
  for (const auto& [job, rank] : std::vector<std::pair<std::string, int>>{
           {"older", 0}, {"older", 1}, {"older", 2}, {"newer", 0}, {"newer", 1}}) {
    auto wanted = options(rank);
    wanted.job = job;
    const FlightRecorder recorder(wanted);
  }
  const FlightDirectory found = read_flights(directory_.path());
  ASSERT_EQ(found.flights.size(), 2u);
  for (const Flight& flight : found.flights) EXPECT_EQ(flight.job, "newer");
  EXPECT_EQ(found.problems,
            std::vector<std::string>{"rank-002.flight belongs to an earlier job or generation"});
}

}  // namespace
}  // namespace paceline
