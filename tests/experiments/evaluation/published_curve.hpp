#pragma once
// A published forgetting curve: what Liu 2024's program measured on Llama-3-8B, of its 19 lengths ten.

#include <array>
#include <cstdint>

#include "experiments/evaluation/forgetting_curve.hpp"

namespace lethe {

/// Correct predictions of ten repeats among ⌈length/2⌉ targets, and the paired probability that the program gives.
struct PublishedPoint {
  int64_t length;
  std::array<int, 10> copied, guessed;
  double p;

  CurvePoint accuracies() const {
    CurvePoint point{length, {}, {}};
    const auto targets = static_cast<double>((length + 1) / 2);
    // The program rounds to float32.
    for (const int count : copied) point.copy.push_back(static_cast<float>(count / targets));
    for (const int count : guessed) point.lm.push_back(static_cast<float>(count / targets));
    return point;
  }
};

// source  1azybug/ForgettingCurve at e3b76dc, Meta-Llama-3-8B.json
inline const std::array<PublishedPoint, 10> kPublishedCurve{{
    {8, {4, 3, 4, 4, 4, 4, 4, 4, 4, 3}, {0, 0, 2, 2, 1, 1, 0, 0, 2, 0}, 1.0131033233446437e-06},
    {523,
     {262, 262, 261, 262, 262, 262, 262, 260, 262, 262},
     {131, 138, 134, 111, 144, 128, 123, 150, 113, 162},
     1.234897442512904e-09},
    {1039,
     {520, 520, 520, 520, 520, 520, 520, 520, 520, 520},
     {289, 221, 237, 280, 300, 272, 265, 277, 272, 315},
     4.211972687416232e-10},
    {2071,
     {1036, 1036, 1036, 1036, 1036, 1035, 1036, 1036, 1036, 1036},
     {559, 542, 542, 611, 498, 580, 543, 556, 479, 552},
     1.3929236589757503e-11},
    {4134,
     {2053, 2066, 2066, 2067, 2065, 2067, 2067, 2066, 2067, 2066},
     {1194, 1032, 1049, 1113, 1026, 1245, 995, 1138, 1055, 1043},
     3.628355434126066e-11},
    {4650,
     {1954, 1970, 1959, 1951, 1941, 1973, 1956, 1968, 2005, 1961},
     {986, 1025, 931, 1140, 913, 902, 1080, 1119, 1037, 1031},
     5.0442109880685096e-11},
    {5166,
     {1311, 1242, 1385, 1282, 1336, 1262, 1270, 1254, 1391, 1227},
     {766, 637, 770, 648, 796, 665, 727, 622, 858, 740},
     4.4370425053954695e-11},
    {5682,
     {586, 581, 682, 601, 608, 732, 633, 736, 693, 666},
     {357, 279, 388, 320, 329, 434, 372, 401, 413, 368},
     1.244992679497642e-10},
    {6714,
     {187, 247, 381, 221, 366, 225, 264, 188, 234, 366},
     {159, 216, 169, 191, 187, 185, 127, 158, 180, 281},
     0.00430122856253584},
    {9293,
     {454, 311, 310, 230, 480, 103, 343, 282, 337, 359},
     {311, 235, 290, 205, 270, 209, 228, 225, 181, 189},
     0.016091321680488952},
}};

}  // namespace lethe
