package resources

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
)

// operatorFlag of a picker names the ServiceAccount of the operator whose calls the picker answers.
const operatorFlag = "--operator="

// OperatorOf returns the ServiceAccount of the operator that has made the Deployment of a pool's pickers; false when it names
// none.
func OperatorOf(pickers *appsv1.Deployment) (types.NamespacedName, bool) {
	for i := range pickers.Spec.Template.Spec.Containers {
		for _, arg := range pickers.Spec.Template.Spec.Containers[i].Args {
			if account, ok := strings.CutPrefix(arg, operatorFlag); ok {
				namespace, name, ok := strings.Cut(account, "/")
				return types.NamespacedName{Namespace: namespace, Name: name}, ok && namespace != "" && name != ""
			}
		}
	}
	return types.NamespacedName{}, false
}
