#include "paceline/engine/telemetry/metrics_log.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/host.h"

namespace paceline {

MetricsLog::MetricsLog(const std::string& path)
    : file_(std::fopen(path.c_str(), "ae")), path_(path) {
  if (!file_) throw system_error("opening the metrics file " + path);
}

void MetricsLog::write(const std::string& event, const std::vector<Field>& fields) {
  if (!file_) return;
  nlohmann::ordered_json line;
  line["event"] = event;
  for (const auto& field : fields) {
    std::visit([&](const auto& value) { line[field.first] = value; }, field.second);
  }
  const std::string text = json_text(line) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() ||
      std::fflush(file_.get()) != 0) {
    log::warning("metrics are no longer written: " + std::string(system_error(path_).what()));
    file_.reset();
  }
}

namespace {

// Writes the fields of a protocol buffer in its wire format.
class ProtoWriter {
 public:
  void put_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.put(static_cast<std::uint8_t>(value | 0x80));
    out_.put(static_cast<std::uint8_t>(value));
  }
  void put_int64(int field, std::int64_t value) {
    put_key(field, kVarint);
    put_varint(static_cast<std::uint64_t>(value));
  }
  void put_double(int field, double value) {
    put_key(field, kFixed64);
    out_.put(std::bit_cast<std::uint64_t>(value));
  }
  void put_float(int field, float value) {
    put_key(field, kFixed32);
    out_.put(std::bit_cast<std::uint32_t>(value));
  }
  void put_bytes(int field, std::span<const std::byte> bytes) {
    put_key(field, kLengthDelimited);
    put_varint(bytes.size());
    out_.put_bytes(bytes);
  }
  const std::vector<std::byte>& bytes() const { return out_.bytes(); }

 private:
  enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };
  void put_key(int field, WireType type) {
    put_varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(type));
  }

  ByteWriter out_;
};

// Field numbers of event.proto and summary.proto.
constexpr int kEventWallTime = 1;
constexpr int kEventStep = 2;
constexpr int kEventFileVersion = 3;
constexpr int kEventSummary = 5;
constexpr int kEventSessionLog = 7;
constexpr int kSessionStatus = 1;
constexpr std::int64_t kSessionStart = 1;
constexpr int kSummaryValue = 1;
constexpr int kValueTag = 1;
constexpr int kValueSimpleValue = 2;

constexpr int kFilesInASecond = 1000;  // at most this many names are tried
constexpr std::string_view kPrefix = "events.out.tfevents.";

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The seconds in a file's name; 0 when the file is not an event file or the number is absurd.
std::int64_t seconds_in(const std::string& name) {
  std::int64_t seconds = 0;
  if (!name.starts_with(kPrefix)) return 0;
  const char* const begin = name.data() + kPrefix.size();
  std::from_chars(begin, name.data() + name.size(), seconds);
  return seconds < std::numeric_limits<std::int64_t>::max() ? seconds : 0;
}

// The current second or, if that is later, the second after the latest one in the names of the
// event files in the directory.
std::int64_t seconds_for_name(const std::string& directory) {
  auto seconds = static_cast<std::int64_t>(seconds_since_1970());
  std::error_code error;
  for (auto file = std::filesystem::directory_iterator(directory, error);
       !error && file != std::filesystem::directory_iterator(); file.increment(error))
    seconds = std::max(seconds, seconds_in(file->path().filename().string()) + 1);
  return seconds;
}

// TFRecord's masking of checksums: a plain checksum of data that contains checksums would be weak.
std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8U; }

}  // namespace

TensorBoardLog::TensorBoardLog(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::int64_t seconds = seconds_for_name(directory);
  for (int number = 0; !file_ && number < kFilesInASecond; ++number) {
    path_ = fmt::format("{}/{}{:010}.{}.{}.{}", directory, kPrefix, seconds, host_name(), getpid(),
                        number);
    file_.reset(std::fopen(path_.c_str(), "wxe"));
    if (!file_ && errno != EEXIST) break;
  }
  if (!file_) throw system_error("opening the event file " + path_);
  ProtoWriter event;
  event.put_double(kEventWallTime, seconds_since_1970());
  event.put_bytes(kEventFileVersion, as_bytes("brain.Event:2"));
  write_record(event.bytes());
}

void TensorBoardLog::resume_after(std::int64_t step) {
  if (!file_) return;
  ProtoWriter session;
  session.put_int64(kSessionStatus, kSessionStart);
  ProtoWriter event;
  event.put_double(kEventWallTime, seconds_since_1970());
  event.put_int64(kEventStep, step + 1);
  event.put_bytes(kEventSessionLog, session.bytes());
  write_record(event.bytes());
}

void TensorBoardLog::scalar(std::string_view tag, std::int64_t step, double value) {
  if (!file_) return;
  ProtoWriter entry;
  entry.put_bytes(kValueTag, as_bytes(tag));
  entry.put_float(kValueSimpleValue, static_cast<float>(value));
  ProtoWriter summary;
  summary.put_bytes(kSummaryValue, entry.bytes());
  ProtoWriter event;
  event.put_double(kEventWallTime, seconds_since_1970());
  event.put_int64(kEventStep, step);
  event.put_bytes(kEventSummary, summary.bytes());
  write_record(event.bytes());
}

void TensorBoardLog::write_record(const std::vector<std::byte>& event) {
  ByteWriter length;
  length.put(static_cast<std::uint64_t>(event.size()));
  ByteWriter record;
  record.put_bytes(length.bytes());
  record.put(masked(crc32c(length.bytes())));
  record.put_bytes(event);
  record.put(masked(crc32c(event)));
  const auto& bytes = record.bytes();
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size() ||
      std::fflush(file_.get()) != 0) {
    log::warning(fmt::format("scalars are no longer written: {}", system_error(path_).what()));
    file_.reset();
  }
}

}  // namespace paceline
