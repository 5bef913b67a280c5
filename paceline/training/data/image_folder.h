#pragma once

// A folder of JPEG and PNG files, with a subfolder for each class, like torchvision's ImageFolder:
//
//   const auto train = std::make_shared<data::ImageFolder>("imagenet/train",
//       data::ImageFolderOptions{.pipeline = {.framing = images::Framing::kRandomResizedCrop,
//                                             .flip_probability = 0.5,
//                                             .mean = images::kImageNetMean,
//                                             .std = images::kImageNetStd}});
//   data::DataLoader loader(train, sampler, {.batch_size = 32, .num_threads = 2});
//
// A batch is float32 [B, 3, height, width] and int64 [B]. Files are read and decoded when a batch
// is made, in the loader's threads; only their names are kept in memory. If a file has been
// replaced since the folder was listed, the new file is read.
//
// Thread safety: all functions are const; any thread may call them.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/core/error.h"
#include "paceline/files/images/image_pipeline_options.h"
#include "paceline/training/data/dataset.h"

namespace paceline::images {
class ImageList;
class ImagePipeline;
}  // namespace paceline::images

namespace paceline::data {

struct ImageFolderOptions {
  images::ImagePipelineOptions pipeline = {};
  bool channels_last = false;  // memory format of the images
  std::uint64_t seed = 0;      // seed for the random choices
  // True: the next valid file replaces a file that has vanished, cannot be read or is damaged; the
  // first 10 skipped files are logged. If false, or for 100 such files in a row, throws an Error.
  bool skip_bad_images = false;
};

class ImageFolder : public Dataset {
 public:
  // Lists the files. Errors: those of images::ImageList and images::ImagePipeline. Warns about
  // files whose types cannot be decoded.
  explicit ImageFolder(const std::string& folder, const ImageFolderOptions& options = {});
  ~ImageFolder() override;

  std::string name() const override { return name_; }
  std::int64_t size() const override;
  const std::vector<std::string>& classes() const;
  std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                std::int64_t epoch) const override;

  // The number of times that a file was skipped, in all batches that this object has made.
  std::int64_t num_skipped() const { return num_skipped_; }
  // The paths of the skipped files, in the order of the samples.
  std::vector<std::string> skipped() const;

 private:
  // Writes one image to `out` and returns its label.
  std::int64_t load(std::int64_t index, std::int64_t epoch, float* out) const;
  std::int64_t load_or_skip(std::int64_t index, std::int64_t epoch, float* out) const;
  void note_skipped(std::int64_t index, const Error& error) const;

  const std::unique_ptr<const images::ImageList> list_;
  const std::string name_;
  const ImageFolderOptions options_;
  const std::unique_ptr<const images::ImagePipeline> pipeline_;
  mutable std::atomic<std::int64_t> num_skipped_{0};
  mutable std::mutex mutex_;                // guards skipped_
  mutable std::set<std::int64_t> skipped_;  // indices of skipped files
};

}  // namespace paceline::data
