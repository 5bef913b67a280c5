#include "paceline/training/data/image_folder.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/files/images/image_files.h"
#include "paceline/files/images/image_pipeline.h"
#include "paceline/training/data/image_dataset.h"
#include "paceline/training/data/transform.h"

namespace paceline::data {
namespace {

// After this many consecutive bad files, the folder itself is considered broken.
constexpr std::int64_t kMaxSkipped = 100;
constexpr std::size_t kMaxLogged = 10;

}  // namespace

ImageFolder::ImageFolder(const std::string& folder, const ImageFolderOptions& options)
    : list_(new images::ImageList(folder)),
      name_(images::printable(folder)),
      options_(options),
      pipeline_(new images::ImagePipeline(options.pipeline, options.seed)) {
  if (list_->num_of_other_types() > 0) {
    log::warning(fmt::format(
        "{}: {} files are neither JPEG nor PNG by their names (.webp, .bmp, .tif, ...) and are "
        "left out",
        name_, list_->num_of_other_types()));
  }
}

std::vector<at::Tensor> ImageFolder::batch(std::span<const std::int64_t> indices,
                                           std::int64_t epoch) const {
  const auto [width, height] = options_.pipeline.size;
  return make_image_batch(indices, {.channels = 3, .height = height, .width = width},
                          options_.channels_last, [&](std::int64_t index, float* out) {
                            return options_.skip_bad_images ? load_or_skip(index, epoch, out)
                                                            : load(index, epoch, out);
                          });
}

std::int64_t ImageFolder::load(std::int64_t index, std::int64_t epoch, float* out) const {
  const std::string path = list_->path(index);
  const auto bytes = images::read_image_file(path, options_.pipeline.decode.max_file_bytes);
  pipeline_->apply(bytes, images::printable(path), out, options_.channels_last, epoch, index);
  return list_->label(index);
}

std::int64_t ImageFolder::load_or_skip(std::int64_t index, std::int64_t epoch, float* out) const {
  const std::int64_t most = std::min(kMaxSkipped, size());
  for (std::int64_t step = 0; step < most; ++step) {
    const std::int64_t candidate = (index + step) % size();
    try {
      return load(candidate, epoch, out);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnsupported) throw;
      note_skipped(candidate, error);
    }
  }
  fail(ErrorCode::kCorrupt, "{}: {} files in a row cannot be used, from {} on", name_, most,
       images::printable(list_->path(index)));
}

void ImageFolder::note_skipped(std::int64_t index, const Error& error) const {
  ++num_skipped_;
  const std::lock_guard lock(mutex_);
  if (!skipped_.insert(index).second || skipped_.size() > kMaxLogged) return;
  log::warning(fmt::format("skipped: {}{}", error.what(),
                           skipped_.size() == kMaxLogged ? "; further files are not named" : ""));
}

std::vector<std::string> ImageFolder::skipped() const {
  std::vector<std::string> paths;
  const std::lock_guard lock(mutex_);
  for (const std::int64_t index : skipped_) paths.push_back(list_->path(index));
  return paths;
}

ImageFolder::~ImageFolder() = default;

std::int64_t ImageFolder::size() const { return list_->size(); }

const std::vector<std::string>& ImageFolder::classes() const { return list_->classes(); }

}  // namespace paceline::data
