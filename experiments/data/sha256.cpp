#include "experiments/data/sha256.hpp"

#include <openssl/evp.h>

#include <array>
#include <memory>
#include <stdexcept>

namespace lethe {

std::string sha256(std::string_view bytes) { return sha256({bytes}); }

std::string sha256(std::span<const std::string_view> pieces) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  std::array<unsigned char, 32> digest;
  bool good = context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (const std::string_view piece : pieces)
    good = good && EVP_DigestUpdate(context.get(), piece.data(), piece.size()) == 1;
  if (!good || EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) != 1)
    throw std::runtime_error("sha256: expected a digest from OpenSSL, found an error");
  std::string digits;
  for (const unsigned char byte : digest) {
    digits += "0123456789abcdef"[byte >> 4];
    digits += "0123456789abcdef"[byte & 15];
  }
  return digits;
}

}  // namespace lethe
