#pragma once

// Metrics of a run as JSON lines: one object a line, appended and flushed line by line, so that a
// killed run keeps what it wrote.
//
// Thread safety: none. A full disk costs the metrics, not the training: after the first failed
// write one warning is logged and the rest is dropped.

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

  // Writes nothing.
  MetricsLog() = default;
  // Appends to `path`, creating it. Error(kSystem) names the path.
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

// Scalars of a run as an event file that TensorBoard shows: `tensorboard --logdir DIR`.
//
// The file is DIR/events.out.tfevents.SECONDS.HOST.PID.N: TFRecords (length, masked CRC-32C, Event
// protocol buffer, masked CRC-32C), written by hand because protobuf clashes with what LibTorch
// carries. Every record is flushed, so that a killed run keeps what it wrote; several runs into one
// directory make several files, which TensorBoard shows as one curve by step. It reads them in the
// order of their names and never goes back, so a new file's SECONDS are above those of all others,
// also after the clock went back.
// https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto
//
// Thread safety: none. A full disk costs the scalars, not the training: after the first failed
// write one warning is logged and the rest is dropped.

class TensorBoardLog {
 public:
  // Writes nothing.
  TensorBoardLog() = default;
  // Makes the directory if it is missing, and a file of its own. Error(kSystem) names the path.
  explicit TensorBoardLog(const std::string& directory);

  // The scalars that follow are of a run that goes on after `step`: TensorBoard drops what files of
  // this directory have of later steps.
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
