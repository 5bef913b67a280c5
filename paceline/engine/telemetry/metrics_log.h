#pragma once

// Metrics of a run as JSON lines: one object per line, appended and flushed line by line, so that a
// killed run keeps the lines that it wrote.
//
// A full disk does not stop the training: after the first failed write one warning is logged, and
// all later metrics are dropped. Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace paceline {

class MetricsLog {
 public:
  using Value = std::variant<double, std::int64_t, std::string>;
  using Field = std::pair<std::string, Value>;

  // A log that writes nothing.
  MetricsLog() = default;
  // Appends to `path`, creating the file if needed. Throws Error(kSystem), which names the path.
  explicit MetricsLog(const std::string& path);

  // {"event":"step","step":10,"loss":0.5}: the fields in the given order. Numbers that JSON cannot
  // express become null.
  void write(const std::string& event, const std::vector<Field>& fields);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::string path_;
};

// Scalars of a run as an event file for TensorBoard: `tensorboard --logdir DIR`.
//
// The file is DIR/events.out.tfevents.SECONDS.HOST.PID.N: TFRecords (length, masked CRC-32C, Event
// protocol buffer, masked CRC-32C), encoded here because a protobuf library would clash with the
// copy inside LibTorch. Every record is flushed, so that a killed run keeps the records that it
// wrote. Runs that write to one directory make several files, which TensorBoard shows as one curve
// by step. TensorBoard reads them in the order of their names and never goes back, so the SECONDS
// of a new file are larger than in all other names, even after the clock was set back.
// https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto
//
// A full disk does not stop the training: after the first failed write one warning is logged, and
// all later scalars are dropped. Thread safety: none.

class TensorBoardLog {
 public:
  // A log that writes nothing.
  TensorBoardLog() = default;
  // Makes the directory if it is missing, and a new file. Throws Error(kSystem), which names the
  // path.
  explicit TensorBoardLog(const std::string& directory);

  // Marks the following scalars as part of a run that was resumed after `step`: TensorBoard then
  // drops scalars of later steps from older files in this directory.
  void resume_after(std::int64_t step);
  void scalar(std::string_view tag, std::int64_t step, double value);

  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void write_record(const std::vector<std::byte>& event);

  std::unique_ptr<std::FILE, Close> file_;
  std::string path_;
};

}  // namespace paceline
