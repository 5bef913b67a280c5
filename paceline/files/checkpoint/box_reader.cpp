#include "paceline/files/checkpoint/box_reader.h"

#include <algorithm>
#include <cstring>

#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

constexpr std::uint64_t kChunksAPiece = 256;

std::uint64_t chunk_of(std::uint64_t position) { return position / kChunkBytes; }

}  // namespace

BoxReader::BoxReader(FileSystem& files, std::string folder, const Manifest& manifest)
    : files_(files), folder_(std::move(folder)), manifest_(manifest) {}

BoxFile& BoxReader::file(std::uint32_t number) {
  auto& opened = open_[number];
  if (!opened) {
    const ManifestFile& entry = manifest_.files.at(number);
    opened = std::make_unique<BoxFile>(files_, folder_ + "/" + entry.name, entry,
                                       BoxFileId{manifest_.step, manifest_.run, number});
  }
  return *opened;
}

void BoxReader::add_runs(RunsByFile& runs, const StoredTensor& tensor, const WantedBox& wanted) {
  const std::uint64_t element = size_of(tensor.dtype);
  for (const StoredBox& stored : tensor.boxes) {
    const auto part = common_part(stored.box, wanted.box);
    if (!part) continue;
    for_common_runs(*part, stored.box, wanted.box,
                    [&](std::int64_t in_file, std::int64_t in_memory, std::int64_t count) {
                      runs[stored.file].push_back(
                          {stored.position + static_cast<std::uint64_t>(in_file) * element,
                           static_cast<std::uint64_t>(count) * element,
                           wanted.to + static_cast<std::uint64_t>(in_memory) * element});
                    });
  }
}

void BoxReader::read(std::span<const WantedBox> wanted) {
  RunsByFile runs;
  for (const WantedBox& one : wanted) {
    const StoredTensor* const tensor = manifest_.find(one.name);
    check(tensor != nullptr, "{}: there is no tensor \"{}\"", folder_, one.name);
    check(one.box.sizes.size() == tensor->shape.size(),
          "{}: tensor \"{}\" has {} dimensions, the box {} has {}", folder_, one.name,
          tensor->shape.size(), to_string(one.box), one.box.sizes.size());
    const auto inside = common_part(one.box, whole_box(tensor->shape));
    if (num_elements(one.box) == 0) continue;
    check(inside == one.box, "{}: tensor \"{}\": the box {} is not within its shape", folder_,
          one.name, to_string(one.box));
    add_runs(runs, *tensor, one);
  }
  for (auto& [number, of_file] : runs) read_runs(file(number), of_file);
}

void BoxReader::read_runs(BoxFile& from, std::vector<Run>& runs) {
  std::ranges::sort(runs, {}, &Run::position);
  std::vector<std::byte> piece;
  std::size_t begun = 0;   // runs before it are done
  std::uint64_t next = 0;  // no chunk before it is needed any more
  while (begun < runs.size()) {
    // Chunks that follow each other and are all wanted.
    const std::uint64_t first = std::max(next, chunk_of(runs[begun].position));
    std::uint64_t end = first;
    std::size_t last = begun;
    const std::uint64_t limit = first + kChunksAPiece;
    for (; last < runs.size() && chunk_of(runs[last].position) <= std::min(end, limit - 1); ++last)
      end = std::max(end, chunk_of(runs[last].position + runs[last].bytes - 1) + 1);
    end = std::min(end, limit);
    const std::uint64_t begin_byte = first * kChunkBytes;
    const std::uint64_t end_byte = std::min(end * kChunkBytes, from.data_bytes());
    piece.resize(end_byte - begin_byte);
    from.read_chunks(first, piece);
    for (std::size_t i = begun; i < last; ++i) {
      const Run& run = runs[i];
      const std::uint64_t begin = std::max(run.position, begin_byte);
      const std::uint64_t stop = std::min(run.position + run.bytes, end_byte);
      if (begin >= stop) continue;
      std::memcpy(run.to + (begin - run.position), piece.data() + (begin - begin_byte),
                  stop - begin);
    }
    next = end;
    while (begun < runs.size() && runs[begun].position + runs[begun].bytes <= end_byte) ++begun;
  }
}

void BoxReader::open_all() {
  for (std::uint32_t number = 0; number < manifest_.files.size(); ++number) file(number);
}

void BoxReader::verify() {
  std::vector<std::byte> piece;
  for (std::uint32_t number = 0; number < manifest_.files.size(); ++number) {
    BoxFile& one = file(number);
    for (std::uint64_t done = 0; done < one.data_bytes(); done += piece.size()) {
      piece.resize(std::min(one.data_bytes() - done, kChunksAPiece * kChunkBytes));
      one.read_chunks(chunk_of(done), piece);
    }
  }
}

std::uint64_t BoxReader::bytes_read() const {
  std::uint64_t bytes = 0;
  for (const auto& [number, one] : open_) bytes += one->bytes_read();
  return bytes;
}

}  // namespace paceline
