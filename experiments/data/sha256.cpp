#include "experiments/data/sha256.hpp"

#include <openssl/evp.h>

#include <array>
#include <stdexcept>

namespace lethe {

std::string sha256(std::string_view bytes) {
  std::array<unsigned char, 32> digest;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1)
    throw std::runtime_error("sha256: expected a digest from OpenSSL, found an error");
  std::string digits;
  for (const unsigned char byte : digest) {
    digits += "0123456789abcdef"[byte >> 4];
    digits += "0123456789abcdef"[byte & 15];
  }
  return digits;
}

}  // namespace lethe
