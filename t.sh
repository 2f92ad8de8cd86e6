#!/bin/bash
# usage: t.sh TREE args
cd $1; shift
export PYTHONPATH=$PWD:$PWD/service:$PWD/clients/python
exec nice timeout 60 /tmp/v/p311/bin/python -m pytest -q -x --no-header -p no:cacheprovider "$@" </dev/null
