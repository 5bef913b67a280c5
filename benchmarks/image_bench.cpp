// Images per second of the loader for a folder: read, decode, random resized crop, flip, normalise,
// into batches. benchmarks/image_loading.py runs it in turns with Python's loader.
//
//   image_bench FOLDER --images 512 --threads 1     {"images": 512, "wall_s": 0.61, "cpu_s": 0.58}

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "paceline/training/data/data_loader.h"
#include "paceline/training/data/image_folder.h"

namespace {

using paceline::images::Framing;

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder;
  std::int64_t count = 512;
  int threads = 1;
  double jitter = 0;
  CLI::App app("Images per second of a folder's loader");
  app.add_option("folder", folder, "A folder for each class")->required();
  app.add_option("--images", count, "How many of its images, from the first on");
  app.add_option("--threads", threads, "Loader threads");
  app.add_option("--jitter", jitter, "Brightness, contrast and saturation of the colour jitter");
  CLI11_PARSE(app, argc, argv);

  const auto dataset = std::make_shared<paceline::data::ImageFolder>(
      folder,
      paceline::data::ImageFolderOptions{.pipeline = {.framing = Framing::kRandomResizedCrop,
                                                      .flip_probability = 0.5,
                                                      .jitter = {jitter, jitter, jitter, 0},
                                                      .mean = paceline::images::kImageNetMean,
                                                      .std = paceline::images::kImageNetStd}});
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  paceline::data::DataLoader loader(dataset, indices, {.batch_size = 32, .num_threads = threads});
  const double cpu = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t seen = 0;
  for (const auto& batch : loader.epoch(0)) seen += batch.data.size(0);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  std::printf("{\"images\": %lld, \"wall_s\": %.4f, \"cpu_s\": %.4f}\n",
              static_cast<long long>(seen), wall.count(), cpu_seconds() - cpu);
}
