#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/telemetry/metrics_log.h"

#include "tests/harness/fresh_directory.h"

namespace paceline {
namespace {

// A strict reader: throws for anything that event.proto does not define.
class ProtoReader {
 public:
  explicit ProtoReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool done() const { return bytes_.remaining() == 0; }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = bytes_.get<std::uint8_t>();
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    throw Error(ErrorCode::kCorrupt, "a varint is too long");
  }
  // Field number and wire type.
  std::pair<int, int> key() {
    const auto key = varint();
    return {static_cast<int>(key >> 3), static_cast<int>(key & 7)};
  }
  double fixed64() { return std::bit_cast<double>(bytes_.get<std::uint64_t>()); }
  float fixed32() { return std::bit_cast<float>(bytes_.get<std::uint32_t>()); }
  std::span<const std::byte> delimited() { return bytes_.take(varint()); }

 private:
  ByteReader bytes_;
};

struct Scalar {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string version, tag;
  float value = 0;
  std::uint64_t session_status = 0;
};

using Key = std::pair<int, int>;

Scalar parse_event(std::span<const std::byte> bytes) {
  Scalar scalar;
  ProtoReader event(bytes);
  while (!event.done()) {
    const auto key = event.key();
    if (key == Key(1, 1)) {
      scalar.wall_time = event.fixed64();
    } else if (key == Key(2, 0)) {
      scalar.step = static_cast<std::int64_t>(event.varint());
    } else if (key == Key(3, 2)) {
      scalar.version = to_string(event.delimited());
    } else if (key == Key(5, 2)) {
      ProtoReader summary(event.delimited());
      EXPECT_EQ(summary.key(), Key(1, 2));
      ProtoReader value(summary.delimited());
      EXPECT_TRUE(summary.done());
      EXPECT_EQ(value.key(), Key(1, 2));
      scalar.tag = to_string(value.delimited());
      EXPECT_EQ(value.key(), Key(2, 5));
      scalar.value = value.fixed32();
      EXPECT_TRUE(value.done());
    } else if (key == Key(7, 2)) {
      ProtoReader session(event.delimited());
      EXPECT_EQ(session.key(), Key(1, 0));
      scalar.session_status = session.varint();
      EXPECT_TRUE(session.done());
    } else {
      throw Error(ErrorCode::kCorrupt, "a field that events do not have");
    }
  }
  return scalar;
}

void expect_checksum(std::span<const std::byte> bytes, std::uint32_t found) {
  const std::uint32_t crc = crc32c(bytes);
  EXPECT_EQ(found, ((crc >> 15) | (crc << 17)) + 0xa282ead8U);
}

std::vector<Scalar> read_events(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ByteReader reader(as_bytes(text));
  std::vector<Scalar> scalars;
  while (reader.remaining() > 0) {
    const auto length = reader.take(8);
    expect_checksum(length, reader.get<std::uint32_t>());
    const auto event = reader.take(ByteReader(length).get<std::uint64_t>());
    expect_checksum(event, reader.get<std::uint32_t>());
    scalars.push_back(parse_event(event));
  }
  return scalars;
}

TEST(TensorBoardLog, writes_records_that_a_strict_reader_accepts) {
  const FreshDirectory directory;
  TensorBoardLog log(directory.file("deep/er"));
  EXPECT_EQ(std::filesystem::path(log.path()).filename().string().rfind("events.out.tfevents.", 0),
            0u);
  const std::string long_tag(300, 't');  // its length takes two bytes
  log.scalar("train/loss", 1, 0.5);
  log.scalar("train/loss", std::int64_t{1} << 40, -3);
  log.scalar(long_tag, 0, std::nan(""));
  log.scalar("größe", 7, 1e300);  // beyond the range of float32
  // The log is still open, but everything was flushed.
  const auto scalars = read_events(log.path());
  ASSERT_EQ(scalars.size(), 5u);
  EXPECT_EQ(scalars[0].version, "brain.Event:2");
  EXPECT_EQ(scalars[1].tag, "train/loss");
  EXPECT_EQ(scalars[1].step, 1);
  EXPECT_EQ(scalars[1].value, 0.5f);
  EXPECT_GT(scalars[1].wall_time, 1.6e9);
  EXPECT_GE(scalars[2].wall_time, scalars[1].wall_time);
  EXPECT_EQ(scalars[2].step, std::int64_t{1} << 40);
  EXPECT_EQ(scalars[2].value, -3.0f);
  EXPECT_EQ(scalars[3].tag, long_tag);
  EXPECT_TRUE(std::isnan(scalars[3].value));
  EXPECT_EQ(scalars[4].tag, "größe");
  EXPECT_EQ(scalars[4].value, std::numeric_limits<float>::infinity());
}

TEST(TensorBoardLog, every_log_has_a_file_of_its_own) {
  const FreshDirectory directory;
  const TensorBoardLog one(directory.path());
  const TensorBoardLog two(directory.path());
  EXPECT_NE(one.path(), two.path());
  EXPECT_EQ(read_events(one.path()).size(), 1u);
  EXPECT_EQ(read_events(two.path()).size(), 1u);
}

// TensorBoard drops the events of earlier files whose steps are not before a session's start.
TEST(TensorBoardLog, a_run_that_goes_on_takes_the_place_of_later_steps) {
  const FreshDirectory directory;
  TensorBoardLog first(directory.path());
  for (int step = 1; step <= 25; ++step) first.scalar("train/loss", step, 1);
  TensorBoardLog second(directory.path());
  second.resume_after(20);
  second.scalar("train/loss", 21, 0.5);
  const auto events = read_events(second.path());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[1].session_status, 1u);  // START
  EXPECT_EQ(events[1].step, 21);
  EXPECT_EQ(events[2].step, 21);
  TensorBoardLog().resume_after(3);
}

// TensorBoard reads files in the order of their names.
TEST(TensorBoardLog, the_newest_file_has_the_last_name_also_after_the_clock_went_back) {
  const FreshDirectory directory;
  const std::string future = directory.file("events.out.tfevents.9123456789.host.1.0");
  for (const std::string& name :
       {future, directory.file("events.out.tfevents.9223372036854775807.no.clock"),
        directory.file("events.out.tfevents.x"), directory.file("notes.txt")})
    std::ofstream(name) << "";
  std::string before = future;
  for (int i = 0; i < 3; ++i) {
    const TensorBoardLog log(directory.path());
    EXPECT_GT(log.path(), before);
    before = log.path();
  }
}

TEST(TensorBoardLog, a_folder_that_cannot_be_made_is_an_error_and_a_default_one_writes_nothing) {
  EXPECT_THROW(TensorBoardLog("/proc/no/such"), Error);
  TensorBoardLog nothing;
  nothing.scalar("a", 1, 1);
  EXPECT_EQ(nothing.path(), "");
}

TEST(TensorBoardLog, a_disk_that_refuses_costs_the_scalars_only) {
  const FreshDirectory directory;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    TensorBoardLog log(directory.path());
    const rlimit limit{100, 100};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    for (int step = 0; step < 10; ++step) log.scalar("a tag that takes some room", step, 1);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace paceline
