# cmake -D BUILD=… -D SOURCE=… -D PYTHON=… -D GENERATOR=… -D COMPILER=… [-D CUDA=cuda] -P run.cmake: installs the build into a fresh folder and
# runs the consumer against it.
set(prefix ${BUILD}/tests/install/prefix)
file(REMOVE_RECURSE ${prefix} ${BUILD}/tests/install/consumer)
function(step)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
step(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
step(${CMAKE_COMMAND} -S ${SOURCE} -B ${BUILD}/tests/install/consumer -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${prefix}
     -DLETHE_PYTHON=${PYTHON} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=Release)
step(${CMAKE_COMMAND} --build ${BUILD}/tests/install/consumer)
step(${BUILD}/tests/install/consumer/consumer ${CUDA})
