#pragma once
// The origin of this program.

#include <string>

namespace lethe {

/// Three lines: the version; the commit of the checkout when the program was linked, "unknown" outside of one; build type, compiler, Torch,
/// and whether the CUDA kernels are inside.
///
/// The commit is read from the file lethe.commit beside the program: inside the program it would change the program's hash, and with it
/// every claim would be measured again after a commit that changes no code.
std::string version();

}  // namespace lethe
