# cmake --install: headers, libraries and a package config, so that find_package(lethe) defines lethe::reference, lethe::optimized and lethe::torch.
# tests/install is the consumer that checks it.
include(CMakePackageConfigHelpers)
set(_lethe_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lethe)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/lethe-config.cmake.in ${PROJECT_BINARY_DIR}/lethe-config.cmake
  INSTALL_DESTINATION ${_lethe_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lethe-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lethe-config.cmake ${PROJECT_BINARY_DIR}/lethe-config-version.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindLibTorch.cmake DESTINATION ${_lethe_cmake_dir})
install(EXPORT lethe NAMESPACE lethe:: DESTINATION ${_lethe_cmake_dir})
