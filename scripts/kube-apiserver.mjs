// kube-apiserver.mjs - builds kube-apiserver for `npm run test:kube` and prints its path.

import { printProgram } from './kube-build.mjs'

await printProgram('kube-apiserver', 'WEFT_KUBE_APISERVER')
