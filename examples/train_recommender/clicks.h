#pragma once

// Samples for a recommender: dense features, one id for each field, and whether the user clicked.

#include <cstdint>
#include <string>

#include <torch/torch.h>

namespace train_recommender {

struct Clicks {
  at::Tensor dense;   // float32 [samples, dense features]
  at::Tensor ids;     // int64 [samples, fields]; ids of different fields differ
  at::Tensor labels;  // float32 [samples], 0 or 1

  std::int64_t size() const { return labels.size(0); }
  Clicks select(const at::Tensor& indices) const;
};

struct ClickData {
  std::string name;
  Clicks training, testing;
  // The AUC of the probabilities with which the labels of `testing` were drawn: no model can be
  // expected to do better. 0: unknown.
  double best_auc = 0;
};

struct SyntheticOptions {
  std::int64_t samples = 200'000;  // for training; in addition, a fifth as many for testing
  std::int64_t fields = 8;
  std::int64_t rows = 20'000;  // ids of each field
  // The k-th most frequent id of a field occurs in proportion to k^-skew.
  double skew = 1.05;
  std::uint64_t seed = 0;
};

// Clicks drawn by a known model (the teacher): logistic in the dense features, in a weight of each
// id, and in the products of the ids' hidden factors. The ids are spread over 64 bits, so how often
// an id occurs says nothing about where its row is.
ClickData make_clicks(const SyntheticOptions& options);

// MovieLens-100k, unpacked from the wheel of recbole (docs/tables.md): `folder` has ml-100k.inter,
// ml-100k.user and ml-100k.item. A click is a rating of at least 4. About a tenth of the ratings,
// drawn by `seed`, are for testing. Throws paceline::Error, which names the file and the line.
ClickData read_movielens(const std::string& folder, std::uint64_t seed);

// The probability that a clicked sample has a larger score than one that was not clicked; equal
// scores count as half.
double area_under_curve(const at::Tensor& scores, const at::Tensor& labels);

// The id of a value of a field.
std::int64_t field_id(std::int64_t field, std::uint64_t value);

}  // namespace train_recommender
