#include "paceline/training/data/streamed_dataset.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/files/images/sample_random.h"
#include "paceline/training/data/dataset_files.h"

namespace paceline::data {

namespace {

// A Fisher-Yates shuffle; the order of std::shuffle would depend on the standard library.
template <class Item>
void shuffle(std::vector<Item>& items, images::SampleRandom random) {
  for (auto left = std::ssize(items); left > 1; --left)
    std::swap(items[static_cast<std::size_t>(left - 1)],
              items[static_cast<std::size_t>(random.below(left))]);
}

// Shuffles the records of `reader` within windows of `window` records; one window is in memory at a
// time. The order depends only on (seed, epoch), so the position is all that is needed to continue.
// Error(kInvalid) unless `window` is above 0.
class WindowShuffle : public StreamedDataset::Reader {
 public:
  WindowShuffle(std::unique_ptr<StreamedDataset::Reader> reader, std::int64_t window,
                std::uint64_t seed, std::int64_t epoch)
      : reader_(std::move(reader)), window_(window), seed_(seed), epoch_(epoch) {
    check(window > 0, "a stream's window of {} records to shuffle", window);
  }

  std::optional<StreamedDataset::Record> next() override {
    if (next_ == records_.size()) fill();
    if (records_.empty()) return {};
    return std::move(records_[next_++]);
  }

  // Skips whole windows without reading them into memory.
  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    if (next_ == records_.size()) {
      const std::int64_t whole = count / window_;
      skipped = reader_->skip(whole * window_);
      windows_ += whole;
    }
    while (skipped < count && next()) ++skipped;
    return skipped;
  }

 private:
  void fill() {
    records_.clear();
    next_ = 0;
    while (std::ssize(records_) < window_) {
      auto record = reader_->next();
      if (!record) break;
      records_.push_back(std::move(*record));
    }
    shuffle(records_, images::SampleRandom(seed_, epoch_, windows_++));
  }

  const std::unique_ptr<StreamedDataset::Reader> reader_;
  const std::int64_t window_;
  const std::uint64_t seed_;
  const std::int64_t epoch_;
  std::int64_t windows_ = 0;  // windows read or skipped
  std::vector<StreamedDataset::Record> records_;
  std::size_t next_ = 0;
};

}  // namespace

std::int64_t StreamedDataset::Reader::skip(std::int64_t count) {
  std::int64_t skipped = 0;
  while (skipped < count && next()) ++skipped;
  return skipped;
}

namespace {

using Path = std::shared_ptr<const std::string>;

constexpr std::size_t kReadBytes = 256 << 10;

std::vector<Path> shared(std::vector<std::string> paths) {
  std::vector<Path> shared;
  for (std::string& path : paths)
    shared.push_back(std::make_shared<const std::string>(std::move(path)));
  return shared;
}

// Reads the lines of several files, one file after another.
class LineReader : public StreamedDataset::Reader {
 public:
  LineReader(std::vector<Path> paths, std::int64_t max_line_bytes)
      : paths_(std::move(paths)), max_line_bytes_(static_cast<std::size_t>(max_line_bytes)) {
    open();
  }

  std::optional<StreamedDataset::Record> next() override {
    StreamedDataset::Record record;
    if (!pass_line(&record.bytes)) return {};
    if (record.bytes.ends_with('\r')) record.bytes.pop_back();
    record.file = paths_[place_];
    record.line = line_;
    return record;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count && pass_line(nullptr)) ++skipped;
    return skipped;
  }

 private:
  // Moves past the next line, and appends it to `text` unless `text` is null. Returns false after
  // the last line.
  bool pass_line(std::string* text) {
    std::size_t length = 0;
    for (;;) {
      if (unread_.empty() && !refill()) {
        if (length > 0) return ++line_, true;  // the last line has no line end
        if (++place_ == paths_.size()) return --place_, false;
        open();
        continue;
      }
      const std::size_t end = unread_.find('\n');
      const std::size_t part = std::min(end, unread_.size());
      length += part;
      check_length(length);
      if (text != nullptr) text->append(unread_.substr(0, part));
      unread_.remove_prefix(end == std::string_view::npos ? part : part + 1);
      if (end != std::string_view::npos) return ++line_, true;
    }
  }

  void check_length(std::size_t length) const {
    if (length <= max_line_bytes_) return;
    fail(ErrorCode::kCorrupt, "{}:{}: a line of more than {} bytes (max_line_bytes)", file_path(),
         line_ + 1, max_line_bytes_);
  }

  const std::string& file_path() const { return *paths_[place_]; }

  void open() {
    file_ = std::make_unique<GzipFile>(file_path());
    line_ = 0;
    is_new_ = true;
  }

  bool refill() {
    const std::size_t got = file_->read(std::as_writable_bytes(std::span(buffer_)));
    unread_ = std::string_view(buffer_.data(), got);
    if (is_new_)
      unread_.remove_prefix(text_start(std::as_bytes(std::span(buffer_).first(got)), file_path()));
    is_new_ = false;
    return got > 0;
  }

  const std::vector<Path> paths_;  // in the order of this epoch
  const std::size_t max_line_bytes_;
  std::size_t place_ = 0;  // index of the open file in paths_
  std::int64_t line_ = 0;  // number of the last line that was passed in the open file
  std::unique_ptr<GzipFile> file_;
  bool is_new_ = true;  // nothing has been read from the open file yet
  std::vector<char> buffer_ = std::vector<char>(kReadBytes);
  std::string_view unread_;  // the part of buffer_ that has not been used yet
};

}  // namespace

LineFiles::LineFiles(std::vector<std::string> paths, Parse parse, const LineFilesOptions& options)
    : paths_(shared(std::move(paths))), parse_(std::move(parse)), options_(options) {
  check(!paths_.empty(), "line files: no file was given");
  check(parse_ && options_.collate, "{}: a function that parses or collates is missing", name());
  check(options_.shuffle_window >= 0 && options_.max_line_bytes > 0,
        "{}: shuffle_window {} must not be negative, max_line_bytes {} must be above 0", name(),
        options_.shuffle_window, options_.max_line_bytes);
  for (const Path& path : paths_) GzipFile{*path};
}

std::string LineFiles::name() const {
  return paths_.size() == 1 ? *paths_[0]
                            : fmt::format("{} and {} more", *paths_[0], paths_.size() - 1);
}

std::unique_ptr<StreamedDataset::Reader> LineFiles::read(std::int64_t epoch) const {
  std::vector<Path> paths = paths_;
  const bool shuffles = options_.shuffle_window > 0;
  if (shuffles) shuffle(paths, {options_.seed, epoch, -1});  // -1: not a window's number
  auto lines = std::make_unique<LineReader>(std::move(paths), options_.max_line_bytes);
  if (!shuffles) return lines;
  return std::make_unique<WindowShuffle>(std::move(lines), options_.shuffle_window, options_.seed,
                                         epoch);
}

std::vector<at::Tensor> LineFiles::batch(std::span<const StreamedDataset::Record> records,
                                         std::int64_t epoch) const {
  std::vector<Sample> samples;
  samples.reserve(records.size());
  for (const StreamedDataset::Record& record : records) {
    try {
      samples.push_back(parse_(record, epoch));
    } catch (const Error& error) {
      fail(error.code(), "{}:{}: {}", *record.file, record.line, error.what());
    }
  }
  return options_.collate(samples);
}

}  // namespace paceline::data
